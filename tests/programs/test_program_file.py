"""Program files: what they declare, and one line for everything that cannot be."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from support.programs import toml

from fedtune.core.errors import UserError
from fedtune.programs import program_file
from fedtune.programs.program_file import Program

WHOLE = """
name = "proto"
command = "python3 {base} --lr {lr} --epochs {epochs} --opt {opt} --mom {mom} --net {net} --seed {seed}"
rounds = 100

[metrics.val_acc]
pattern = 'Averaged Test Accuracy: ([0-9.]+)'
split = "validation"
skip = 1
divide = 100

[metrics.test_acc]
pattern = 'final ([0-9.]+)'

[metrics.rank]
pattern = 'rank ([0-9]+)'
mode = "min"

[space]
lr = "0.001..0.3 log"
epochs = "1..50"
opt = ["sgd", "adam"]
mom = {range = "0..0.95", when = {opt = "sgd"}}

[defaults]
lr = 0.005
epochs = 5
opt = "adam"
base = "-S"
net = 3

[environment]
PYTHONPATH = "../extra"
"""


def read(folder: Path, text: str) -> Program:
    return program_file.read(toml(folder, text))


def test_a_whole_file_is_what_it_says(tmp_path: Path) -> None:
    program = read(tmp_path, WHOLE)
    hps = program.hyper
    assert program.name == "proto" and program.rounds == 100 and program.folder == str(tmp_path)
    assert (hps["lr"].low, hps["lr"].high, hps["lr"].log, hps["lr"].default) == (0.001, 0.3, True, 0.005)
    assert hps["epochs"].integer and not hps["lr"].integer and hps["opt"].choices == ("sgd", "adam")
    assert program.searched == ("lr", "epochs", "opt", "mom") and program.conditions == {"mom": {"opt": ("sgd",)}}
    assert program.configuration({}) == {"lr": 0.005, "epochs": 5, "opt": "adam", "mom": 0.475, "base": "-S", "net": 3}
    assert [note for note in program.notes if "mom" in note and "0.475" in note]
    assert program.seed == "{seed}" and program.environment == {"PYTHONPATH": "../extra"}
    assert pickle.loads(pickle.dumps(program)) == program


def test_test_figures_select_only_if_that_is_said(tmp_path: Path) -> None:
    program = read(tmp_path, WHOLE)
    assert program.selectable() == {"val_acc": "max", "rank": "min"} and program.reported == ("test_acc",)
    assert "test_acc" in program.selectable(selects_on_test=True)
    with pytest.raises(UserError, match=r"own.toml:12: .*test data.*test_acc"):
        program.require_selectable("test_acc")
    program.require_selectable("test_acc", selects_on_test=True)
    with pytest.raises(UserError, match="did you mean 'val_acc'"):
        program.require_selectable("val_ac")


@pytest.mark.parametrize("pattern", ["Test Accuracy: (.*)", "test_acc=(.*)", "TEST (.*)", "meanTest (.*)"])
def test_a_pattern_with_the_word_test_selects_nothing_until_its_split_is_said(tmp_path: Path, pattern: str) -> None:
    text = f"command = 'true'\nrounds = 2\n[metrics.acc]\npattern = '{pattern}'\nmode = 'max'\n"
    assert read(tmp_path, text).selectable() == {}
    assert read(tmp_path, f"{text}split = 'validation'").selectable() == {"acc": "max"}


def test_words_that_only_contain_test_say_nothing(tmp_path: Path) -> None:
    text = "command = 'true'\nrounds = 2\n[metrics.acc]\npattern = 'latest of the contest: (.*)'\nmode = 'max'\n"
    assert read(tmp_path, text).selectable() == {"acc": "max"}


def test_the_final_check_may_run_something_else(tmp_path: Path) -> None:
    text = """
command = "echo -data MNISTval {lr}"
rounds = 2
[metrics.val_acc]
pattern = 'Test Accuracy: ([0-9.]+)'
split = "validation"
[space]
lr = "0.1..1"
[check]
command = "echo -data MNIST {lr}"
metrics.test_acc.pattern = 'Test Accuracy: ([0-9.]+)'
"""
    program = read(tmp_path, text)
    assert program.checking().command == ("echo", "-data", "MNIST", "{lr}")
    assert list(program.checking().metrics) == ["test_acc"] and program.checking().rounds == 2
    assert read(tmp_path, text.partition("[check]")[0]).checking().command == program.command


def test_a_command_line_makes_the_same_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entries = {"command": "echo {lr}", "metrics": {"acc": {"pattern": "acc (.*)"}}, "space": {"lr": "0.1..1"}}
    program = program_file.of_option(rounds=3, seed="none", folder=None, **entries)
    same = (
        "command = 'echo {lr}'\nrounds = 3\nseed = 'none'\n[metrics.acc]\npattern = 'acc (.*)'\n[space]\nlr = '0.1..1'"
    )
    file = replace(read(tmp_path, same), path="--algo", text=program.text, name="program")
    assert program == file and program.folder == str(tmp_path)
    with pytest.raises(UserError, match="--algo: rounds must be greater"):
        program_file.of_option(rounds=0, **entries)


def test_a_program_without_a_seed_says_so(tmp_path: Path) -> None:
    text = "command = 'true'\nrounds = 1\n[metrics.acc]\n"
    assert [n for n in read(tmp_path, text).notes if "no seed" in n]
    assert read(tmp_path, f"seed = 'none'\n{text}").notes == ()


def test_fingerprint_tells_file_command_and_interpreter(tmp_path: Path) -> None:
    found = read(tmp_path, "command = 'python3 -V'\nrounds = 1\n[metrics.acc]\n").fingerprint()
    assert found["command"] == ["python3", "-V"] and found["interpreter"].startswith("Python 3")
    assert (
        found["sha256"] != read(tmp_path, "command = 'python3 -V'\nrounds = 2\n[metrics.acc]\n").fingerprint()["sha256"]
    )


TOP = "command = 'echo {lr}'\nrounds = 3\n"
METRIC = "[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n"
SPACE = "[space]\nlr = '0.1..1'\n"
ALL = TOP + METRIC + SPACE


def metric(line: str) -> str:
    return f"{TOP}{METRIC}{line}\n{SPACE}"


def space(line: str, command: str = "echo {lr} {a}") -> str:
    return f"command = '{command}'\nrounds = 3\n{METRIC}{SPACE}{line}\n"


# a file, and what its one line says: the place, and words of the rule
WRONG = {
    "no TOML": ("command = \n", r"own.toml:1: .*TOML"),
    "unclosed text": ("rounds = 3\ncommand = 'x", r"own.toml:2: .*TOML"),
    "a key twice": ("rounds = 3\nrounds = 4\n", "own.toml:2?.*TOML"),
    "empty": ("", "own.toml: command must be there"),
    "no command": (f"rounds = 3\n{METRIC}", "command must be there"),
    "no metric": (
        "command = 'true'\nrounds = 3\n[metrics]\n",
        "own.toml:3: metrics must .*have at least 1 item",
    ),
    "unknown key": (f"comand = 'x'\n{ALL}", r"own.toml:1: unknown key 'comand': did you mean 'command'"),
    "unknown table": (f"{ALL}[envronment]\n", "unknown key 'envronment': did you mean 'environment'"),
    "unknown key of a metric": (
        metric("spilt = 'test'"),
        r"own.toml:5: unknown key of metrics.val_acc 'spilt'.*'split'",
    ),
    "unknown key of check": (f"{ALL}[check]\nrounds = 3\n", "unknown key of check 'rounds'"),
    "empty check": (f"{ALL}[check]\n", "check must be a table with what differs"),
    "rounds 0": (ALL.replace("= 3", "= 0"), "own.toml:2: rounds must be greater than or equal to 1, but got 0"),
    "command a number": (
        ALL.replace("'echo {lr}'", "3"),
        "own.toml:1: command must be a command, as text or as a list of words, but got 3; for example",
    ),
    "command empty": (ALL.replace("'echo {lr}'", "'  '"), "command must be a command, as text or as a list"),
    "open quote": (ALL.replace("'echo {lr}'", '"echo \'{lr}"'), "command must be words as in a shell.*quotation"),
    "unknown name": (ALL.replace("{lr}", "{lr} {ls}"), r"unknown name in command 'ls': did you mean 'lr'.*\[space\]"),
    "open brace": (ALL.replace("{lr}", "{lr} {"), "command must have names in braces.*{{ and }}"),
    "form in braces": (ALL.replace("{lr}", "{lr:.3f}"), "all its digits, so write {lr}"),
    "nothing in braces": (ALL.replace("{lr}", "{lr} {}"), "names in braces"),
    "a pipe": (ALL.replace("echo", "echo | tee log"), "own.toml:1: command must be one program, as no shell.*has '|'"),
    "a variable": (
        ALL.replace("echo", "LR=1 echo"),
        "command must begin with a program.*'LR=1'; say it in",
    ),
    "command not found": (ALL.replace("echo", "eccho"), "own.toml:1: command must begin with a program, but 'eccho'"),
    "script not found": (ALL.replace("echo", "python3 tran.py"), "a script that is there, but 'tran.py' is not in"),
    "command not executable": (ALL.replace("echo", "./own.toml"), "or make it executable"),
    "folder not there": (f"folder = 'nowhere'\n{ALL}", "own.toml:1: folder must be a folder that is there"),
    "folder of nobody": (f"folder = '~no-such-user/x'\n{ALL}", "there is none at .*no-such-user/x"),
    "hyperparameter not used": (
        ALL.replace("{lr}", ""),
        r"own.toml:6: command must use every .*lr would change nothing",
    ),
    "default not used": (f"{ALL}[defaults]\nlr = 0.5\nb = 1\n", r"own.toml:9: command must use every.*b would change"),
    "hyperparameter named rounds": (space("rounds = '1..3'"), "none that fedtune gives itself, but got 'rounds'"),
    "hyperparameter named so": (space("'a b' = '1..3'"), "name must be a letter, then"),
    "metric and hyperparameter": (space("val_acc = '1..3'"), "a metric and a hyperparameter must differ in name"),
    "range backwards": (space("a = '3..1'"), "own.toml:7: space.a must be a range LOW..HIGH with LOW < HIGH, but got"),
    "range with three dots": (space("a = '1...3'"), "space.a must be a range or a list of choices.*for example"),
    "range a number": (space("a = 3"), "space.a must be a range"),
    "log of 0": (space("a = '0..3 log'"), "above 0 at both ends on a log scale"),
    "one choice": (space("a = ['x']"), "two or more.*fixed goes to .defaults."),
    "table without range": (space("a = {when = {lr = 1.0}}"), "a table with range or choices"),
    "unknown key of a range": (space("a = {rnge = '1..2'}"), "unknown key of space.a 'rnge'.*'range'"),
    "unknown condition": (space("a = {range = '1..2', when = {b = 1}}"), "unknown hyperparameter 'b'"),
    "condition on itself": (space("a = {range = '1..2', when = {a = 1}}"), "unknown hyperparameter 'a'"),
    "condition out of range": (space("a = {range = '1..2', when = {lr = 5.0}}"), "own.toml:7: lr must be a number in"),
    "condition a text": (space("a = {range = '1..2', when = 'lr'}"), "space.a.when must be a valid dictionary"),
    "circle": (
        space("a = {range = '1..2', when = {b = 1}}\nb = {range = '1..2', when = {a = 1}}", "echo {lr} {a} {b}"),
        "must not depend on itself, but that of a does",
    ),
    "default out of range": (f"{ALL}[defaults]\nlr = 5\n", "own.toml:8: lr must be a number in 0.1..1, but got 5"),
    "default a text": (f"{ALL}[defaults]\nlr = '0.5'\n", "defaults.lr must be a value of lr.*without quotes"),
    "default a fraction": (f"{space('a = ' + repr('1..3'))}[defaults]\na = 1.5\n", "a must be a whole number in 1..3"),
    "default a date": (f"{ALL}[defaults]\nlr = 2020-01-01\n", "lr must be a number"),
    "pattern no expression": (
        metric("").replace("([0-9.]+)", "([0-9.+"),
        "own.toml:4: metrics.val_acc.pattern must be a reg",
    ),
    "pattern without a group": (metric("").replace("([0-9.]+)", "[0-9.]+"), "one group .*but it has 0"),
    "pattern with two groups": (metric("").replace("'acc:", "'(acc|Acc):"), "one group.*but it has 2.*write .\\?:"),
    "pattern a number": (f"{TOP}[metrics.val_acc]\npattern = 3\n{SPACE}", "pattern must be a valid string"),
    "unknown split": (metric("split = 'valid'"), "split must be 'train', 'validation' or 'test', but got 'valid'"),
    "split against the name": (
        metric("split = 'train'").replace("val_acc", "test_acc"),
        "must be 'test' for test_acc.*call it val_acc",
    ),
    "split of test rows": (metric("split = 'test'"), "must be 'validation' for val_acc.*call it test_acc"),
    "worst outside": (metric("worst = 2"), "worst must be within 0 to 1 for val_acc"),
    "mode against the name": (metric("mode = 'min'"), "must be 'max' for val_acc"),
    "skip below 0": (
        metric("skip = -1"),
        "own.toml:5: metrics.val_acc.skip must be greater than or equal to 0, but got -1",
    ),
    "divide 0": (metric("divide = 0"), "divide must be a number other than 0"),
    "worst of nothing": (metric("worst = nan"), "worst must be a finite number"),
    "metric named round": (f"{TOP}[metrics.round]\npattern = '(.*)'\n{SPACE}", "not be one that fedtune uses itself"),
    "metric named so": (f"{TOP}[metrics.'val acc']\n{SPACE}", "a metric's name must be letters"),
    "column without a file": (metric("column = 'acc'"), "column must be left out where there is a pattern"),
    "column of no file": (f"{TOP}[metrics.val_acc]\ncolumn = 'acc'\n{SPACE}", "column must be of a file"),
    "file of two trials": (f"file = 'a.csv'\n{ALL}", "file must be another file for every trial"),
    "file of a kind": (
        f"file = '{{trial}}.xls'\n{TOP}[metrics.val_acc]\n{SPACE}",
        "val_acc needs a pattern, .* read as a text",
    ),
    "file with a name": (f"file = '{{trail}}.csv'\n{ALL}", "unknown name in file 'trail': did you mean 'trial'"),
    "seed said, not given": (
        f"seed = '{{seed}}'\n{ALL}",
        "own.toml:1: seed must be .* where {seed} is not in the command",
    ),
    "seed given, said none": (f"seed = 'none'\n{ALL}".replace("{lr}", "{lr} {seed}"), "seed must be '{seed}'"),
    "seed a number": (f"seed = 3\n{ALL}", "seed must be a valid string"),
    "seed no name": (f"seed = 'a b'\n{ALL}", "the name of an environment variable"),
    "check not seeded": (
        f"{ALL.replace('{lr}', '{lr} {seed}')}[check]\ncommand = 'echo {{lr}}'\n",
        "own.toml:8: the final check must be seeded as the search is",
    ),
    "check without a hyperparameter": (
        f"{ALL}[check]\ncommand = 'echo'\n",
        r"must use every .*write {lr} in \[check\]",
    ),
    "check not found": (
        f"{ALL}[check]\ncommand = 'eccho {{lr}}'\n",
        "own.toml:8: check.command must begin with a program",
    ),
    "check unknown name": (f"{ALL}[check]\ncommand = 'echo {{l}}'\n", "unknown name in check.command 'l'"),
    "environment a list": (f"{ALL}[environment]\nA = [1]\n", "environment.A must be text or a number"),
    "environment of ours": (f"{ALL}[environment]\nFEDTUNE_ROWS = 'x'\n", "not of fedtune's own"),
    "environment named so": (f"{ALL}[environment]\n'a=b' = 'x'\n", "names of variables"),
    "environment unknown name": (f"{ALL}[environment]\nA = '{{lrr}}'\n", "unknown name in environment.A 'lrr'"),
    "stall 0": (f"stall = 0\n{ALL}", "stall must be greater than 0"),
    "pty a text": (f"pty = 'yes'\n{ALL}", "pty must be a valid boolean"),
    "isolate true": (f"isolate = true\n{ALL}", "isolate must be 'copy'"),
    "gpu a number": (f"gpu = 0\n{ALL}", "gpu must be 'visible' or 'machine'"),
    "resume without a checkpoint": (f"resume_arguments = '--resume'\n{ALL}", "beside {checkpoint}"),
    "checkpoint without numbers": (ALL.replace("{lr}", "{lr} {checkpoint}"), "must also find the number of the round"),
    "write to one file": (f"{ALL}[write.'c.yaml']\na = 1\n", "own.toml:7: write.c.yaml must be another file for every"),
    "write of a kind": (f"{ALL}[write.'{{trial}}.ini']\na = 1\n", "own.toml:7: .* must be a file that ends in .yaml"),
    "write from nothing": (
        f"{ALL}[write.'{{trial}}.yaml']\nfrom = 'no.yaml'\n",
        "own.toml:7: from must be .*No such file",
    ),
    "write of an unknown key": (
        f"{ALL}[write.'{{trial}}.toml']\nfrom = 'own.toml'\nspace.lt = 1\n",
        "own.toml:7: unknown key of .*own.toml 'lt': did you mean 'lr'",
    ),
    "write an unknown name": (f"{ALL}[write.'{{trial}}.json']\na = '{{ls}}'\n", "own.toml:7: unknown name in write"),
    "first round": (f"first_round = -1\n{ALL}", "first_round must be greater than or equal to 0"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read(tmp_path, text)
    assert "own.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_the_right_file_beside_them_is_taken(tmp_path: Path) -> None:
    assert read(tmp_path, ALL).searched == ("lr",)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(UserError, match=said):
            program_file.read(path)
    (tmp_path / "latin.toml").write_bytes(b"rounds = 3\nname = '\xe9'\n")
    with pytest.raises(UserError, match=r"latin.toml: a program file must be UTF-8, but.*0xe9"):
        program_file.read(tmp_path / "latin.toml")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(UserError, match="TOML"):
        program_file.read(tmp_path / "deep.toml")
