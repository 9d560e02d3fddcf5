"""What `fedtune check PROGRAM.toml` says of programs: each line with a program for which it is true."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.programs import toml

from fedtune.commands import check as command
from fedtune.programs import program_check, workload
from fedtune.programs.program_check import ProgramCheck, Trial
from fedtune.programs.run import ProgramRun

METRICS = """
[metrics.val_acc]
pattern = '^acc: ([0-9.]+)'
split = "validation"
[metrics.test_acc]
pattern = 'test_acc: ([0-9.]+)'
"""
SPACE = '[space]\nlr = "0.1..1"\nlam = "1..9"\n[defaults]\nlr = 0.2\nlam = 2\n'
SEEDED = """
import random, sys
lr, lam, seed, rounds = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
random.seed(seed)
for i in range(rounds):
    print(f"acc: {lr * random.random() / lam}\\ntest_acc: 0.5")
"""
PLAIN = "for i in range(4): print(f'acc: 0.{i}\\ntest_acc: 0.5')\n"


def written(folder: Path, script: str, words: str = "", more: str = "", rounds: int = 4) -> str:
    """A program file for this script.  more: what else it says, in place of the usual metrics if it has any."""
    (folder / "own.py").write_text(script)
    top, bar, tables = more.partition("[")
    metrics = "" if "[metrics." in more else METRICS
    python = f"{sys.executable} -S own.py {words}"
    return str(toml(folder, f'command = "{python}"\nrounds = {rounds}\n{top}\n{metrics}\n{bar}{tables}'))


def found(
    path: str, rounds: int = 2, until: str = "", tell: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """What is found, by name: the status and what is said; no more after the finding `until`."""
    check = ProgramCheck(workload.of_file(path), rounds, tell=tell)
    said: dict[str, str] = {}
    with closing(check.judge()) as findings:
        for finding in findings:
            said[finding.name] = f"{said.get(finding.name, '')}{finding.status}: {finding.says}\n"
            if finding.name == until:
                break
    return said


def test_a_program_that_does_all_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also its page: what runs, and what is found."""
    script = SEEDED.replace("for i", "import time\nfor i").replace("    print", "    time.sleep(0.4)\n    print")
    path = written(tmp_path, script, "{lr} {lam} {seed} {rounds}", SPACE, rounds=30)
    assert command.main([path, "--rounds", "2"]) == 0
    page, told = capsys.readouterr()
    title, runs, where, *lines, end = page.splitlines()
    assert title == "own (your program): runs of 2 rounds (of 30)"
    assert runs.startswith("runs: ") and where == f"in: {tmp_path}"
    passed = {line[9:26].strip(): line[26:] for line in lines if line.startswith("passed ")}
    assert list(passed) == ["selection", "rounds", "line", "noise", "hyperparameters", "files", "final check"]
    assert passed["selection"] == (
        "val_acc selects, of validation rows, as split says; of test rows, and only reported: test_acc"
    )
    assert passed["rounds"].startswith("2 rounds came, the first after ")
    assert "; a whole run of 30 takes 0:00:" in passed["rounds"]
    assert passed["noise"].startswith("the same seed gives the same figures; seeds 0 and 1 differ: val_acc 0.0")
    assert "in round 2, 0.0" in passed["noise"]
    assert passed["hyperparameters"] == "lr, lam: another value gives other figures"
    assert passed["final check"] == "it reports test_acc, of test rows"
    assert [line for line in lines if not line.startswith("passed ")] == [
        "skipped  checkpoint       it has none, or one report only: a trial that is interrupted begins again"
    ]
    assert end.startswith("8 checks passed, 1 skipped (")
    runs = ("the defaults", "the same again", "another seed", "lr = 1.0", "lam = 9")
    assert told.splitlines() == [f"run {i}: {what}" for i, what in enumerate(runs, 1)]


DRAWS = "import random\nfor i in range(4): print(f'acc: {random.random()}\\ntest_acc: 0.5')"
TWICE = "it fails when it runs again: own failed with status 1"
ROW = {
    "no seed": (DRAWS, "{lr} {lam}", SPACE, "noise", "advice: two runs without a seed differ: val_acc 0."),
    "no seed, effects": (DRAWS, "{lr} {lam}", SPACE, "hyperparameters", "skipped: figures differ from run to run"),
    "ignores its seed": (PLAIN, "{seed}", "", "noise", "advice: figures are equal whatever the seed"),
    "draws elsewhere": (DRAWS, "{seed}", "", "noise", "advice: the same seed gives other figures: val_acc 0."),
    "runs only once": (f"import os\nos.mkdir('results')\n{PLAIN}", "", "", "noise", f"failed: {TWICE}"),
    "fails after its figures": (
        *("import sys\n" + PLAIN.replace("4", "int(sys.argv[1])") + "{}['x']", "{rounds}", "", "line"),
        "advice: own failed with status 1 after its last round; its figures count: KeyError: 'x'",
    ),
    "no effect": (
        *(SEEDED.replace(" / lam", ""), "{lr} {lam} {seed} {rounds}", SPACE, "hyperparameters"),
        "passed: lr: another value gives other figures\nadvice: lam changed nothing in 2 rounds: 2 and 9 give the same "
        "figures; see whether it reads it, or try more rounds by --rounds\n",
    ),
    "a cost that falls": (
        *("for i in range(4): print(f'acc: 0.5 kwh: {9 - i}')", ""),
        "[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n[metrics.kwh]\npattern = 'kwh: (.*)'\ngrows = true\n",
        *("rounds", "advice: kwh grows, as declared, but fell from one round to the next; report its total so far"),
    ),
    "a value that fails": (
        *(f"import sys\nassert '9' not in sys.argv\n{SEEDED}", "{lr} {lam} {seed} {rounds}", SPACE, "hyperparameters"),
        "passed: lr: another value gives other figures\nadvice: lam = 9 fails, and so would trials with such a value",
    ),
    "a condition": (
        "import sys\nfor i in range(4): print('acc:', float(sys.argv[2]) if sys.argv[1] == 'sgd' else 0.3)",
        "{opt} {momentum}",
        "[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n"
        '[space]\nopt = ["adam", "sgd"]\nmomentum = {range = "0..0.9", when = {opt = "sgd"}}\n',
        "hyperparameters",
        "passed: opt: another value gives other figures\nskipped: momentum: not tried, to save time or",
    ),
}


@pytest.mark.parametrize("case", ROW)
def test_what_is_found(tmp_path: Path, case: str) -> None:
    script, words, more, name, says = ROW[case]
    until = {"hyperparameters": "files", "line": "noise"}.get(name, name)
    said = found(written(tmp_path, script, words, more), until=until)
    assert says in said[name]


# --- figures


def test_no_row_is_a_failure_with_what_the_program_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "print('accuracy = 0.1')")
    assert list(found(path)) == ["selection", "rounds"]
    assert command.main([path]) == 1
    *_, failed, output, end = capsys.readouterr().out.splitlines()
    assert failed.startswith("FAILED   rounds           own must report 4 rounds, but ended after 0 rounds")
    assert output == "  accuracy = 0.1" and end.startswith("1 of 2 checks failed, 1 passed (")


@pytest.mark.parametrize(
    ("seconds", "whole", "says"),
    [
        ([2.0, 0.0, 0.0], 2.0, "advice: 3 rounds came, … all came at once: let"),
        ([0.5, 0.0, 0.0], 0.5, "passed: 3 rounds came, the first after 0.5 s, then one in 0 s"),  # it does not matter
        (
            [9.0],
            9.0,
            "passed: 1 round came, the first after 9 s; one report says nothing of the time between reports, nor",
        ),
        ([2.0, 0.01, 0.01], 2.1, "advice: 3 rounds came, … takes 0:00:02; most of it start-up, which each trial pays"),
        ([0.5, 0.5, 0.5], 1.5, "passed: … then one in 0.5 s; a whole run of 4 takes 0:00:02\n"),
    ],
)
def test_only_figures_that_come_at_once_are_said_to_come_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: list[float], whole: float, says: str
) -> None:
    rows = ProgramCheck._rows

    def timed(self: ProgramCheck, run: ProgramRun) -> Trial:
        trial = rows(self, run)
        took = [row | {"seconds": s} for row, s in zip(trial.rows, seconds, strict=True)]
        return trial._replace(rows=took, seconds=whole)

    monkeypatch.setattr(ProgramCheck, "_rows", timed)
    path = written(tmp_path, PLAIN)
    said = found(path, rounds=len(seconds), until="rounds")["rounds"]
    assert all(part in said for part in says.split("… ")) and ("a whole run of 4 takes" in said) is (len(seconds) > 1)


def test_a_figure_that_comes_once_for_the_whole_run_is_told(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "print('acc: 0.1\\ntest_acc: 0.5')"))
    path.write_text(f"report_every = 4\n{path.read_text()}")
    says = found(str(path), until="rounds")["rounds"]
    assert says.startswith("advice: 4 rounds came, the first after ") and "; a whole run of 4 takes 0:00:" in says
    assert "figures come once, at the end: no trial can be stopped early" in says


LINE = "client 0 acc=0.35 | global: acc=0.42, f1=0.4 | test: acc=0.38"


@pytest.mark.parametrize(
    ("metric", "line", "says"),
    [
        ("val_acc]\npattern = '.*acc=([0-9.]+)'", LINE, "advice: … test: acc=>>0.38<<; the word test "),
        ("val_acc]\npattern = 'global: acc=([0-9.]+)'", LINE, "passed: val_acc … global: acc=>>0.42<<, f1=0.4 | test"),
        ("val_acc]\npattern = 'test: acc=([0-9.]+)'\nsplit = 'validation'", LINE, "validation rows, as split"),
        ("val_acc]\npattern = '.*acc=([0-9.]+)'", LINE, "a shorter match reads 0.35: write .*? for .* if"),
        ("acc]\nmode = 'max'\npattern = 'global: acc=([0-9.]+)'", LINE, "of rows that the file does not say"),
        ("val_acc]\npattern = 'acc=([0-9.]+)'", "TEST loss 1, acc=0.4", "advice: … the word TEST stands before it"),
        ("val_acc]\npattern = 'acc=([0-9.]+)'", "latest acc=0.4", "passed: … latest acc=>>0.4<<"),
        (
            "val_acc]\npattern = 'acc=([0-9.]+)'",
            f"{'x' * 500} acc=0.4 {'y' * 500}",
            f": …{'x' * 115} acc=>>0.4<< {'y' * 59}…\n",
        ),
        ("val_acc]", 'fedtune {"val_acc": 0.4}', 'passed: val_acc, … by its name alone: fedtune {"val_acc": 0.4}'),
    ],
)
def test_the_line_of_a_figure_is_shown(tmp_path: Path, metric: str, line: str, says: str) -> None:
    said = found(written(tmp_path, f"for i in range(4): print({line!r})", more=f"[metrics.{metric}\n"), until="line")
    assert all(part in said["line"] for part in says.split(" … "))


# --- hyperparameters


def test_a_value_that_makes_the_program_slow_has_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for."""
    monkeypatch.setattr(program_check, "AND", 0.5)
    script = SEEDED.replace(" / lam", "") + "    while lam == 9: pass\n"
    said = found(written(tmp_path, script, "{lr} {lam} {seed} {rounds}", SPACE))["hyperparameters"]
    assert said == "passed: lr, lam: another value gives other figures\n"


def test_hyperparameters_that_are_not_tried_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_check, "TRIED", 1)
    said = found(written(tmp_path, SEEDED, "{lr} {lam} {seed} {rounds}", SPACE))["hyperparameters"]
    assert "skipped: lam: not tried" in said
    check = ProgramCheck(workload.of_file(str(tmp_path / "own.toml"), pinned={"lr": 0.2}), 2)
    assert "lam: another value gives other figures" in [f.says for f in check.judge() if f.name == "hyperparameters"]


# --- files


def saves(path: str, how: str = "open({path}, 'a').write('x')") -> str:
    """A program that writes to this path, an expression."""
    return f"import os, sys\nos.makedirs('results', exist_ok=True)\n{how.replace('{path}', path)}\n{PLAIN}"


READS = "open({path}, 'w').write('x')\nopen({path}).read()"
ONCE = "if os.path.exists({path}): open({path}).read()\nopen({path}, 'w').write('x')"
OWN = 'write {trial} or {folder} in its name, or isolate = "copy"'
FINE = "passed: two trials write no file in common (looked at: .)"
EACH = f"advice: every trial writes results/out.csv, which none reads; only the last stays: to keep all, {OWN}"
SPOILED = f"failed: every trial writes results/best.pt and it is read, so two at once spoil it; {OWN}"
ALIKE = "advice: two trials with the same values write results/0.2.csv, which none reads; only the last stays: to keep"
FILES = [
    (saves("'results/out.csv'"), "{lr} {lam}", SPACE, EACH),
    (saves("'results/best.pt'", READS), "", "", SPOILED),
    (saves("'results/best.pt'", ONCE), "", "", SPOILED),
    (saves("f'results/{sys.argv[1]}.csv'"), "{lr} {lam}", SPACE, f"{ALIKE} all, {OWN}"),
    (saves("f'results/{sys.argv[1]}'"), "{trial}", "", FINE),
    (saves("os.path.join(sys.argv[1], 'out')"), "{folder}", "", FINE),
    (saves("'results/out.csv'"), "", 'isolate = "copy"\n', FINE),
]


@pytest.mark.parametrize(("script", "words", "more", "says"), FILES)
def test_files_that_trials_have_in_common(tmp_path: Path, script: str, words: str, more: str, says: str) -> None:
    assert found(written(tmp_path, script, words, more), until="files")["files"] == f"{says}\n"


def test_a_file_beside_the_programs_folder_is_found(tmp_path: Path) -> None:
    """As PFLlib's `../results`."""
    (tmp_path / "project" / "system").mkdir(parents=True)
    path = Path(written(tmp_path, saves(repr("../out"), READS)))
    (tmp_path / "own.py").rename(tmp_path / "project" / "system" / "own.py")
    path.write_text("folder = 'project/system'\n" + path.read_text())
    said = found(str(path), until="files")["files"]
    assert said.startswith("failed: every trial writes ../out and it is read, so two at once spoil it; write {trial}")
    assert said.endswith(" or {folder} in its name\n")  # a copy of its folder would not help


# --- going on, test rows


CONTINUES = """
import os, random, sys, time
state = os.path.join(sys.argv[1], 'state')
done = int(open(state).read()) if os.path.exists(state) else 0
for i in range(done + 1, 5):
    open(state + '.new', 'w').write(str(i))
    os.replace(state + '.new', state)
    print(f'round {i} acc: 0.{i}{DRIFT}')  # it may be stopped as soon as this is read
    while i == 2 and os.path.exists('hold'):
        time.sleep(0.01)
"""
WITH_ROUND = "[metrics.val_acc]\npattern = 'round (?P<round>[0-9]+) acc: ([0-9.]+)'\n"


@pytest.mark.parametrize(
    ("drift", "says"),
    [
        ("", "passed: it goes on after round 2, with the figures of an undisturbed run\n"),
        ("{done}", "advice: it goes on after round 2 with other figures than an undisturbed run: val_acc 0.30 and"),
    ],
)
def test_whether_it_goes_on_from_its_checkpoint(tmp_path: Path, drift: str, says: str) -> None:
    script = CONTINUES.replace("{DRIFT}", drift)

    def tell(line: str) -> None:
        """However late it is stopped, it has not gone on to another round."""
        hold = tmp_path / "hold"
        hold.touch() if "up to its checkpoint" in line else hold.unlink(missing_ok=True)

    said = found(written(tmp_path, script, "{checkpoint}", WITH_ROUND), rounds=3, tell=tell)["checkpoint"]
    assert said.startswith(says.replace("0.30", "0.3"))


def test_a_checkpoint_that_is_never_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_check, "WRITES", 0.1)
    script = "for i in range(1, 5): print(f'round {i} acc: 0.{i}')"
    said = found(written(tmp_path, script, "{checkpoint}", WITH_ROUND))["checkpoint"]
    assert said.startswith("advice: nothing was in {checkpoint} after 1 round")


def test_test_figures_that_would_select_are_a_failure(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN, more="[metrics.acc]\npattern = 'test_acc: ([0-9.]+)'\n")
    said = found(path, until="rounds")
    assert said["selection"].startswith(f"failed: {path}: a search must not use test data")
    assert said["rounds"].startswith("passed: ")


@pytest.mark.parametrize(
    ("more", "rows"), [("", "rows that the file does not say"), ('split = "train"\n', "train rows")]
)
def test_what_selects_and_is_not_said_to_be_validation_is_advice(tmp_path: Path, more: str, rows: str) -> None:
    said = found(written(tmp_path, PLAIN, more=f"[metrics.gain]\npattern = '^acc: ([0-9.]+)'\n{more}"))
    assert said["selection"].startswith(f"advice: gain selects, of {rows}")
    assert "; say by `split` and `mode` what it is" in said["selection"]
    assert said["final check"].startswith("advice: only what selected, which is too good: name in [check]")


def test_the_final_checks_command_runs_too(tmp_path: Path) -> None:
    check = f"[check]\ncommand = '''{sys.executable} -S -c \"print('acc: 0.5')\"'''\nmetrics.best.pattern = '(0.5)'\n"
    path = written(tmp_path, PLAIN.replace("4", "1"), more=check, rounds=1)
    assert found(path)["final check"] == "passed: [check]'s command runs, and reports best\n"
    Path(path).write_text(Path(path).read_text().replace("(0.5)", "(0.6)"))
    assert found(path)["final check"].startswith("failed: [check]'s command: own must report 1 round, but ended")


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("no.toml", "no.toml cannot be read: No such file or directory"),
        ("own.toml --rounds 0", "--rounds must be 1 or more, but got 0"),
        ("own.toml --model mlp", "--model goes with an algorithm or a model, but own.toml is a program"),
        ("own.toml --set lx=1", "unknown hyperparameter of own 'lx'"),
        ("fedavg --metric client:a", "--metric goes with a Flower app's folder, but got fedavg"),
        ("fedavg --rounds 2", "--rounds goes with a program file or a Flower app, but got fedavg"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, PLAIN)
    assert command.main(arguments.split()) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and says in error
