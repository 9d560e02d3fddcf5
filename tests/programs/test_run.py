"""A trial of a program: every row of its output, every way to fail, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.programs import finish, made, processes, python, start
from support.rows import first
from support.waiting import wait_for

from fedtune.core.errors import UserError
from fedtune.programs import child
from fedtune.programs.output import last_line
from fedtune.programs.program_file import Program
from fedtune.programs.run import ProgramRun, Stopped

ROUNDS = "for i in range(1, 4): print('acc:', i / 10)\n"
NAMED = "[metrics.val_acc]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a program, in which its trial's is too."""
    return tmp_path


def log(folder: Path) -> str:
    return (folder / "trial" / "output.log").read_text()


def loaded(run: ProgramRun, folder: Path, program: Program | None = None, **config: Any) -> ProgramRun:
    """Another run that goes on where this one is, which ends."""
    run.save(folder / "saved")
    run.close()
    again = start(program or run.program, folder, config)
    again.load(folder / "saved")
    return again


def fails(program: Program, folder: Path, kind: type[BaseException] = UserError) -> str:
    """What its failure says; nothing is left of it."""
    run = start(program, folder)
    with pytest.raises(kind) as caught:
        finish(run)
    assert processes(folder) == []
    return str(caught.value)


# --- rows


def test_rows_come_round_by_round(folder: Path) -> None:
    run = start(python(folder, ROUNDS), folder)
    assert (run.round, run.rounds) == (0, 3)
    rows = finish(run)
    assert [row["val_acc"] for row in rows] == [0.1, 0.2, 0.3] and [row["round"] for row in rows] == [1, 2, 3]
    assert all(row["seconds"] >= 0 and row["eval_seconds"] == 0 for row in rows)
    assert run.round == 3 and run.test() == rows[-1]
    assert processes(folder) == []
    run.close()


def test_a_row_comes_before_the_program_goes_on(folder: Path) -> None:
    """Nothing is buffered, also where the program says nothing of it."""
    script = "import os, time\nprint('acc: 0.1')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('acc: 0.2')"
    run = start(python(folder, script, rounds=2), folder)
    assert run.step()["val_acc"] == 0.1
    (folder / "go").touch()
    assert run.step()["val_acc"] == 0.2


def test_the_configuration_is_in_the_command(folder: Path) -> None:
    more = (
        "[space]\nlr = '0.001..0.3 log'\nn = '1..9'\nopt = ['sgd', 'a b']\n[defaults]\nlr = 0.1\nn = 3\nopt = 'sgd'\n"
    )
    more += "[environment]\nOPT = '{opt}'\n"
    script = "import os, sys\nprint(sys.argv[1:], os.environ['OPT'])\nprint('acc: 0.5')"
    program = python(folder, script, more, 1, "{lr} --n={n} {seed} {rounds} {trial} {gpu}")
    run = start(program, folder, config={"lr": 1e-3, "opt": "a b"}, seed=7)
    finish(run)
    assert f"['0.001', '--n=3', '7', '1', '{run.trial}', '0'] a b" in log(folder)
    with pytest.raises(UserError, match="unknown hyperparameter of own 'lx'"):
        start(program, folder, {"lx": 1})
    with pytest.raises(UserError, match="n must be a whole number"):
        start(program, folder, {"n": 100})


def test_the_environment_is_prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    script = """
import json, os, sys
json.dump(dict(os.environ), open('found.json', 'w'))
print('acc: 0.5', sys.stdin.read())
"""
    more = "[environment]\nOPENBLAS_NUM_THREADS = 2\n"
    finish(start(python(folder, script, more, 1), folder, gpu_ids=("3", "5"), gpus=0.5, cpus=4))
    found = json.loads((folder / "found.json").read_text())
    assert (found["CUDA_VISIBLE_DEVICES"], found["FEDTUNE_GPU_SHARE"], found["PYTHONUNBUFFERED"]) == ("3,5", "0.5", "1")
    assert [found[f"{n}_NUM_THREADS"] for n in ("OMP", "MKL", "OPENBLAS")] == ["4", "5", "2"]
    assert "RAY_ADDRESS" not in found


@pytest.mark.parametrize(("said", "expected"), [("", "0,1 3,5"), ("gpu = 'machine'\n", "3,5 None")])
def test_the_index_of_a_gpu_is_as_the_program_counts(folder: Path, said: str, expected: str) -> None:
    script = "import os, sys\nprint(sys.argv[1], os.environ.get('CUDA_VISIBLE_DEVICES'))\nprint('acc: 0.5')"
    finish(start(python(folder, script, said, 1, "{gpu}"), folder, gpu_ids=("3", "5")))
    assert expected in log(folder)


def test_a_seed_may_be_an_environment_variable(folder: Path) -> None:
    program = made(folder, ["sh", "-c", "echo acc: 0.$MY_SEED"], rounds=1)
    object.__setattr__(program, "seed", "MY_SEED")
    assert start(program, folder, seed=7).step()["val_acc"] == 0.7


def test_rows_are_reported_through_a_file(folder: Path) -> None:
    script = (
        "import os\nfor i in range(3): print('{\"val_acc\": 0.%d}' % i, file=open(os.environ['FEDTUNE_ROWS'], 'a'))"
    )
    assert [r["val_acc"] for r in finish(start(python(folder, script, NAMED), folder))] == [0.0, 0.1, 0.2]


def test_colours_carriage_returns_and_wrong_letters_do_no_harm(folder: Path) -> None:
    script = (
        "import sys\nw = sys.stdout.buffer.write\nw(b'10%\\r20% \\x1b[1;32macc:\\x1b[0m 0.1\\r\\n')\n"
        "w(b'\\xff\\xfe acc: 0.2\\n')\nw(b'\\x1b]0;title\\x07acc: 0.3')"
    )
    assert [row["val_acc"] for row in finish(start(python(folder, script), folder))] == [0.1, 0.2, 0.3]
    assert last_line(folder / "trial" / "output.log") == "acc: 0.3"


def test_a_program_that_needs_a_terminal_has_one_if_that_is_said(folder: Path) -> None:
    script = "import os, sys\nassert sys.stdout.isatty() and open('/dev/tty')\n" + ROUNDS
    assert "AssertionError" in fails(python(folder, script), folder)
    assert len(finish(start(python(folder, script, "pty = true\n"), folder))) == 3


def test_output_of_gigabytes_is_kept_to_its_end(folder: Path) -> None:
    script = (
        "for i in range(1, 4):\n    for _ in range(40): print(('x' * 99 + '\\n') * 1000)\n    print('acc:', i / 10)"
    )
    assert len(finish(start(python(folder, script), folder))) == 3
    assert (folder / "trial" / "output.log").stat().st_size <= 2**20 and log(folder).endswith("acc: 0.3\n")


def test_each_trial_may_have_a_copy_of_the_folder(folder: Path) -> None:
    script = (
        "import os\nassert not os.path.exists('result')\nopen('result', 'w').write('1')\n"
        "open('own.py', 'a').write('#')\n" + ROUNDS
    )
    program = python(folder, script, "isolate = 'copy'\n")
    for name in ("a", "b"):
        assert len(finish(ProgramRun(program, {}, 0, folder / "runs" / name))) == 3
    assert not (folder / "result").exists() and (folder / "own.py").read_text() == script
    assert not (folder / "runs" / "a" / "copy").exists()


def test_two_runs_never_have_the_same_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtune.programs.run.CLAIMS", 0.0)
    program = python(folder, "import sys\nopen(sys.argv[1] + '/x', 'x')\n" + ROUNDS, "", 3, "{folder} {trial}")
    runs = [start(program, folder) for _ in range(2)]
    rows = [run.step() for run in runs]
    assert rows[0]["val_acc"] == rows[1]["val_acc"]
    assert len({run.folder for run in runs}) == len({r.trial for r in runs}) == 2
    for run in runs:
        finish(run)
    (folder / "trial" / "x").unlink()
    assert len(finish(start(program, folder))) == 3  # it is free again


# --- failures

FAILURES = {
    "no match ever": ("print('accuracy 0.5')", r"ended after 0 rounds, without val_acc.*pattern.*\n  accuracy 0.5"),
    "no output": ("", "ended after 0 rounds.*it printed nothing"),
    "too few rounds": ("print('acc: 0.5')", "say by `report_every`"),
    "too many rounds": (ROUNDS + "print('acc: 0.4')", "own: a run has 3 rounds, but another val_acc came.*'acc: 0.4'"),
    "a traceback": (
        "print('acc: 0.5')\nraise KeyError('lr')",
        "after 1 round, without val_acc of the next: KeyError: 'lr'\n",
    ),
    "a traceback with status 0": (
        "import traceback\nprint('acc: 0.5')\ntry: {}['lr']\nexcept KeyError: traceback.print_exc()",
        "must report 3 rounds, but ended after 1 round, .*; it printed a traceback: KeyError: 'lr'\n",
    ),
    "a crash": ("import os; os.abort()", "failed with signal SIGABRT after 0 rounds"),
    "a signal without a name": ("import os; os.kill(os.getpid(), 35)", "failed with signal 35 after 0 rounds"),
    "a status beyond those of signals": ("import sys; sys.exit(163)", "failed with status 163 after 0 rounds"),
    "many lines": ("for i in range(100): print('line', i)", r"pattern may be wrong\n  line 80(.|\n)*\n  line 99$"),
    "it reads stdin": ("input()", r"status 1 after 0 rounds(.|\n)*EOFError"),
    "it needs a terminal": ("open('/dev/tty')", r"status 1(.|\n)*/dev/tty"),
    "a comma in a number": ("print('acc: 0,91')", "where the figure ends, but '0' may be a part of '0,91'"),
    "no number": ("print('acc: 0.5.')", "must be a number, but got '0.5.', in 'acc: 0.5.'"),
    "it deletes its folder": ("import shutil; shutil.rmtree('trial'); print('acc: 0.5')", "ended after 1 round"),
    "it detaches itself": (
        "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint('acc: 0.5')\ntime.sleep(600)",
        "must report 3 rounds, but ended",
    ),
    "it closes its output": ("import os; os.close(1); os.close(2); os._exit(0)", "ended after 0 rounds"),
}


@pytest.mark.parametrize(("script", "said"), FAILURES.values(), ids=FAILURES)
def test_a_failure_says_why_with_the_last_lines(folder: Path, script: str, said: str) -> None:
    assert re.search(said, fails(python(folder, script), folder))


@pytest.mark.parametrize(
    ("last", "pattern", "says"),
    [
        ("acc: x1", "acc: ([0-9.]+)", "must report 3 rounds, but ended after 2 rounds"),
        ("a" * 80, "(?:acc: |(?:a|aa)+$)([0-9.]+)", "pattern of val_acc must find its figure within 1 second"),
    ],
)
def test_rows_before_a_failure_count(folder: Path, last: str, pattern: str, says: str) -> None:
    script = f"print('acc: 0.1\\nacc: 0.2\\n{last}')"
    run = start(python(folder, script, f"[metrics.val_acc]\npattern = '{pattern}'\n"), folder)
    assert [run.step()["val_acc"], run.step()["val_acc"]] == [0.1, 0.2]
    with pytest.raises(UserError, match=says):
        run.step()
    assert processes(folder) == []


def test_a_line_that_was_cut_is_not_looked_at(folder: Path) -> None:
    """When a program is killed as it prints 0.91, 0.9 may be all that comes."""
    cut = "import os, sys\nsys.stdout.write('acc: 0.9')\nsys.stdout.flush()\nos.kill(os.getpid(), 9)"
    run = start(python(folder, cut, rounds=1), folder)
    with pytest.raises(ChildProcessError):
        run.step()
    cut = cut.replace("sys.stdout.write(", "open(sys.argv[1], 'w').write('acc\\n0.9')  # ")
    more = "file = '{folder}/a.csv'\n[metrics.acc]\n"
    with pytest.raises(ChildProcessError):
        start(python(folder, cut, more, 1, "{folder}/a.csv"), folder).step()


@pytest.mark.parametrize("rounds", [2, 1])
def test_silence_ends_a_trial(folder: Path, rounds: int) -> None:
    program = python(folder, "import time\nprint('acc: 0.5')\ntime.sleep(99)", rounds=rounds)
    run = start(program, folder)
    if rounds == 2:
        run.step()  # before that it has all the time that it needs to start
    object.__setattr__(program, "stall", 0.2 if rounds == 2 else 2.0)
    with pytest.raises(UserError, match="own was silent for"):
        run.step()
    assert processes(folder) == []


def test_a_round_that_never_ends_ends_a_trial(folder: Path) -> None:
    script = "import time\nwhile True: print('working'); time.sleep(0.01)"
    assert "took more than 0.3 seconds for 1 round after" in fails(
        python(folder, script, "longest_round = 0.3\n"), folder
    )


def test_a_command_that_is_gone_meanwhile_is_told(folder: Path) -> None:
    (folder / "tool").touch(0o755)
    program = made(folder, "./tool")
    (folder / "tool").unlink()
    assert "\n  ./tool could not be started: No such file" in fails(program, folder)


# --- processes


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):  # a daemon: it leaves its parent, its session and its group
    if os.fork(): break
    os.setsid()
print('acc: 0.5', flush=True)
time.sleep(600)
"""


def test_nothing_is_left_after_close(folder: Path) -> None:
    """Not a child, not a daemon, not one that ignores SIGTERM."""
    script = "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + STUBBORN
    run = start(python(folder, script), folder)
    run.step()
    wait_for(lambda: len(processes(folder)) >= 4)
    run.close()
    assert processes(folder) == []
    run.close()


def test_a_program_that_stops_its_keeper_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "ENDS", 0.3)
    script = (
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\nprint('acc: 0.5', flush=True)\ntime.sleep(600)"
    )
    run = start(python(folder, script), folder)
    run.step()
    run.close()
    wait_for(lambda: not processes(folder))  # they were killed, which takes a moment


WORKER = """
import sys
from pathlib import Path
from fedtune.programs import program_file
from fedtune.programs.run import ProgramRun
run = ProgramRun(program_file.read(sys.argv[1]), {}, 0, Path(sys.argv[2]))
while True:
    print(run.step(), flush=True)
"""


ENDS = "import os, signal, sys\nfor i in range(1, {rounds} + 1): print('acc:', i / 10, flush=True)\n{end}\n"


@pytest.mark.parametrize(
    ("rounds", "end", "says"),
    [
        (1, "sys.exit(130)", "own was ended by SIGINT in round 2"),
        (2, "os.kill(os.getpid(), 9)", "own was ended by SIGKILL in round 3; the machine may be out of memory"),
        (1, "os._exit(137)", "own was ended by SIGKILL in round 2; the machine may be out of memory"),
        (1, "os.kill(os.getpid(), 15)", "own was ended by SIGTERM in round 2"),
    ],
)
def test_a_program_that_is_ended_from_outside_says_when(folder: Path, rounds: int, end: str, says: str) -> None:
    assert fails(python(folder, ENDS.format(rounds=rounds, end=end)), folder, Stopped) == says


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("sys.exit(3)", "failed with status 3 after its last round; its figures count"),
        ("{}['x']", "failed with status 1 after its last round; its figures count: KeyError: 'x'"),
        ("os.abort()", "failed with signal SIGABRT after its last round; its figures count"),
        ("os.kill(os.getpid(), 15)", "was ended by SIGTERM after its last round; its figures count"),
        (
            "import traceback\ntry: {}['x']\nexcept KeyError: traceback.print_exc()",
            "ended with status 0, but printed a traceback: KeyError: 'x'",
        ),
    ],
)
def test_figures_that_are_all_there_count_however_the_program_ends(folder: Path, end: str, says: str) -> None:
    run = start(python(folder, ENDS.replace("{end}", end).replace("{rounds}", "3")), folder)
    assert [row["val_acc"] for row in finish(run)] == [0.1, 0.2, 0.3] and run.take_notes() == [f"own {says}"]


SHARES = """
import multiprocessing as mp, os, signal, sys, time
from multiprocessing import shared_memory

def hold(lock):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(999)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, {on_sigterm})
    block = shared_memory.SharedMemory(create=True, size=1000)
    lock = mp.get_context("spawn").Lock()
    print("names:", block._name, "/sem." + lock._semlock.name[1:])
    worker = mp.get_context({method!r}).Process(target=hold, args=(lock,))
    worker.start()
    print("acc: 0.1", flush=True)
    time.sleep(999)
"""


def shared(folder: Path) -> list[Path]:
    """What a program has in shared memory, by its own words."""
    names = next(line for line in log(folder).splitlines() if line.startswith("names:")).split()[1:]
    return [Path(f"/dev/shm{name}") for name in names]


SHARING = SHARES.format(on_sigterm="signal.SIG_IGN", method="spawn")
WAYS = [("spawn", "signal.SIG_IGN"), ("fork", "lambda *_: print('no')"), ("spawn", "signal.SIG_DFL")]


@pytest.mark.parametrize(("method", "on_sigterm"), first(WAYS, 2))
def test_nothing_stays_in_shared_memory(folder: Path, method: str, on_sigterm: str) -> None:
    run = start(python(folder, SHARES.format(on_sigterm=on_sigterm, method=method)), folder)
    run.step()
    names = shared(folder)
    assert len(names) == 2 and all(path.exists() for path in names)
    run.close()
    assert not any(path.exists() for path in names) and processes(folder) == []


@pytest.mark.long  # as long as what cleans shared memory may take
def test_a_process_that_only_looks_like_one_that_cleans_ends_too(folder: Path) -> None:
    script = "import subprocess, sys, time\n"
    script += (
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)  # resource_tracker import main'])\n"
    )
    run = start(python(folder, f"{script}print('acc: 0.1')\ntime.sleep(999)"), folder)
    run.step()
    run.close()
    assert processes(folder) == []


KILLED = [(SHARING, who) for who in ("worker", "keeper")]
KILLED += [(STUBBORN, who) for who in ("worker and its children, as Ray does", "keeper", "worker")]


@pytest.mark.parametrize(("script", "who"), first(KILLED, 4))
def test_nothing_is_left_when_whoever_keeps_it_is_killed(folder: Path, script: str, who: str) -> None:
    program = python(folder, script)
    command = [sys.executable, "-c", WORKER, program.path, str(folder / "trial")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout and worker.stdout.readline()
        assert len(processes(folder)) >= 2
        names = shared(folder) if script == SHARING else []
        children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        for pid in [keeper_of(folder)] if who == "keeper" else [*map(int, children * ("its" in who)), worker.pid]:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes(folder), seconds=60)
        assert not any(path.exists() for path in names)
        worker.kill()


def keeper_of(folder: Path) -> int:
    return next(pid for pid in processes(folder) if b"keeper.py" in Path(f"/proc/{pid}/cmdline").read_bytes())


# --- going on


@pytest.mark.parametrize("every", [1, 5])
def test_a_run_that_is_loaded_is_silent_until_the_round_where_it_was(folder: Path, every: int) -> None:
    run = start(python(folder, ROUNDS, f"report_every = {every}\n", 3 * every), folder)
    run.step(), run.step()
    again = loaded(run, folder)
    assert again.round == 2 * every and again.test()["val_acc"] == 0.2
    assert [(row["round"], row["val_acc"]) for row in finish(again)] == [(3 * every, 0.3)] and again.notes == []
    if every > 1:
        with pytest.raises(ValueError, match="belongs to another run"):  # its rounds were counted otherwise then
            loaded(run, folder, python(folder, ROUNDS, "", 3))


def test_a_program_that_gives_other_figures_is_told(folder: Path) -> None:
    run = start(python(folder, "import time\n" + ROUNDS.replace("i / 10", "i / 10 + time.time() % 0.1")), folder)
    run.step()
    again = loaded(run, folder)
    assert again.step()["round"] == 2
    (note,) = again.notes
    assert "gives other figures each time: round 1 again: val_acc was 0.1" in note


def test_a_state_of_another_run_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtune.programs.run.CLAIMS", 0.0)
    more = "[space]\nlr = '0.1..1'\n[defaults]\nlr = 0.5\n"
    program = python(folder, ROUNDS, more, 3, "{lr}")
    start(program, folder).save(folder / "saved")
    for other in (start(program, folder, {"lr": 0.2}), start(program, folder, seed=1)):
        with pytest.raises(ValueError, match="belongs to another run"):
            other.load(folder / "saved")
    (folder / "saved" / "program.json").write_text("{}")
    with pytest.raises(ValueError, match="is no state"):
        start(program, folder).load(folder / "saved")


RESUMES = """
import os, sys, time
folder, lr, resumed = sys.argv[1], sys.argv[2], sys.argv[3:]
state = os.path.join(folder, 'state')
done = int(open(state).read()) if os.path.exists(state) else 0
assert bool(done) == bool(resumed), (done, resumed)
print('begins at', done)
for i in range(done + 1, 5):
    print('round', i, 'acc:', i / 10)
    open(state + '.new', 'w').write(str(i))
    os.replace(state + '.new', state)
    while i >= 2 and not os.path.exists('go'): time.sleep(0.01)
"""
CHECKPOINTED = """resume_arguments = "--resume"
[metrics.val_acc]
pattern = 'round (?P<round>[0-9]+) acc: ([0-9.]+)'
[space]
lr = '0.1..1'
[defaults]
lr = 0.5
"""


def checkpointed(folder: Path, every: int = 1) -> Program:
    more = f"report_every = {every}\n{CHECKPOINTED}" if every > 1 else CHECKPOINTED
    script = RESUMES.replace("'round', i,", f"'round', i * {every},")
    return python(folder, script, more, 4 * every, "{checkpoint} {lr}")


def at_round_2(folder: Path, every: int = 1) -> ProgramRun:
    """Its checkpoint is written, and it waits."""
    run = start(checkpointed(folder, every), folder)
    run.step(), run.step()
    wait_for(lambda: (folder / "trial" / "checkpoint" / "state").read_text() == "2")
    return run


@pytest.mark.parametrize("every", [1, 5])
def test_a_program_with_checkpoints_goes_on_from_them(folder: Path, every: int) -> None:
    run = at_round_2(folder, every)
    run.save(folder / "saved")
    run.close()
    (folder / "go").touch()
    for config in ({}, {"lr": 0.2}):  # as population-based training goes on with other values
        again = start(run.program, folder, config=config)
        again.load(folder / "saved")
        assert again.round == 2 * every
        assert [(row["round"], row["val_acc"]) for row in finish(again)] == [(3 * every, 0.3), (4 * every, 0.4)]
        assert again.notes == [] and "begins at 2" in log(folder)


def test_a_run_that_was_closed_begins_again_and_not_from_what_it_left(folder: Path) -> None:
    run = at_round_2(folder)
    run.close()
    (folder / "go").touch()
    assert [row["val_acc"] for row in finish(run)] == [0.3, 0.4]
    assert "begins at 0" in log(folder) and run.notes == []


@pytest.mark.parametrize("state", ["3", "x"])
def test_a_checkpoint_that_leads_nowhere_is_left_out(folder: Path, state: str) -> None:
    """One of a later round, whose row was never told; and one that is broken."""
    run = at_round_2(folder)
    run.save(folder / "saved")
    run.close()
    (folder / "go").touch()
    (folder / "saved" / "checkpoint" / "state").write_text(state)
    again = start(run.program, folder)
    again.load(folder / "saved")
    assert [row["val_acc"] for row in finish(again)] == [0.3, 0.4]
    assert len(again.notes) == 1 and "begins again" in again.notes[0]
