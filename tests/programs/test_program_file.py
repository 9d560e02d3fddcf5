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


@pytest.mark.parametrize("pattern", ["Test Accuracy: (.*)", "test_acc=(.*)", "TEST (.*)", "meanTest (.*)"])
def test_a_pattern_with_the_word_test_selects_nothing_until_its_split_is_said(tmp_path: Path, pattern: str) -> None:
    text = f"command = 'true'\nrounds = 2\n[metrics.acc]\npattern = '{pattern}'\nmode = 'max'\n"
    assert read(tmp_path, text).selectable() == {}
    assert read(tmp_path, f"{text}split = 'validation'").selectable() == {"acc": "max"}
    other = text.replace(pattern, "latest of the contest: (.*)")  # which only contain the word
    assert read(tmp_path, other).selectable() == {"acc": "max"}


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


def test_fingerprint_tells_file_and_command(tmp_path: Path) -> None:
    found = read(tmp_path, "command = 'python3 -V'\nrounds = 1\n[metrics.acc]\n").fingerprint()
    assert found["command"] == ["python3", "-V"]
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
    "no TOML": ("command = \n", r".*TOML"),
    "empty": ("", "own.toml: command must be there"),
    "no metric": ("command = 'true'\nrounds = 3\n[metrics]\n", "metrics must .*have at least 1 item"),
    "unknown key": (f"comand = 'x'\n{ALL}", r"unknown key 'comand': did you mean 'command'"),
    "unknown key of a metric": (metric("spilt = 'test'"), r"unknown key of metrics.val_acc 'spilt'.*'split'"),
    "unknown key of check": (f"{ALL}[check]\nrounds = 3\n", "unknown key of check 'rounds'"),
    "empty check": (f"{ALL}[check]\n", "check must be a table with what differs"),
    "rounds 0": (ALL.replace("= 3", "= 0"), "rounds must be greater than or equal to 1, but got 0"),
    "command a number": (ALL.replace("'echo {lr}'", "3"), "command must be a command, as text .* but got 3"),
    "open quote": (ALL.replace("'echo {lr}'", '"echo \'{lr}"'), "command must be words as in a shell.*quotation"),
    "unknown name": (ALL.replace("{lr}", "{lr} {ls}"), r"unknown name in command 'ls': did you mean 'lr'.*\[space\]"),
    "open brace": (ALL.replace("{lr}", "{lr} {"), "command must have names alone in braces"),
    "form in braces": (ALL.replace("{lr}", "{lr:.3f}"), "command must have names alone in braces"),
    "a pipe": (ALL.replace("echo", "echo | tee log"), "command must be one program, but has '.'"),
    "a variable": (ALL.replace("echo", "LR=1 echo"), "command must begin with a program.*'LR=1'; say it in"),
    "command not found": (ALL.replace("echo", "eccho"), "command must begin with a program, but 'eccho'"),
    "script not found": (ALL.replace("echo", "python3 tran.py"), "a script that is there, but 'tran.py' is not in"),
    "folder not there": (f"folder = 'nowhere'\n{ALL}", "folder must be a folder that is there"),
    "hyperparameter not used": (ALL.replace("{lr}", ""), r"but lr would change nothing"),
    "default not used": (f"{ALL}[defaults]\nlr = 0.5\nb = 1\n", r"but b would change nothing"),
    "hyperparameter named rounds": (space("rounds = '1..3'"), "none that fedtune gives itself, but got 'rounds'"),
    "metric and hyperparameter": (space("val_acc = '1..3'"), "a metric and a hyperparameter must differ in name"),
    "range backwards": (space("a = '3..1'"), "space.a must be a range LOW..HIGH with LOW < HIGH, but got"),
    "log of 0": (space("a = '0..3 log'"), "above 0 at both ends on a log scale"),
    "one choice": (space("a = ['x']"), "two or more.*fixed goes to .defaults."),
    "table without range": (space("a = {when = {lr = 1.0}}"), "a table with range or choices"),
    "unknown key of a range": (space("a = {rnge = '1..2'}"), "unknown key of space.a 'rnge'.*'range'"),
    "unknown condition": (space("a = {range = '1..2', when = {b = 1}}"), "unknown hyperparameter 'b'"),
    "condition out of range": (space("a = {range = '1..2', when = {lr = 5.0}}"), "lr must be a number in"),
    "condition a text": (space("a = {range = '1..2', when = 'lr'}"), "space.a.when must be a valid dictionary"),
    "circle": (
        space("a = {range = '1..2', when = {b = 1}}\nb = {range = '1..2', when = {a = 1}}", "echo {lr} {a} {b}"),
        "must not depend on itself, but that of a does",
    ),
    "default out of range": (f"{ALL}[defaults]\nlr = 5\n", "lr must be a number in 0.1..1, but got 5"),
    "default a text": (f"{ALL}[defaults]\nlr = '0.5'\n", "defaults.lr must be in 0.1..1, .*without quotes"),
    "default a date": (f"{ALL}[defaults]\nlr = 2020-01-01\n", "lr must be a number"),
    "pattern no expression": (metric("").replace("([0-9.]+)", "([0-9.+"), "metrics.val_acc.pattern must be a reg"),
    "pattern without a group": (metric("").replace("([0-9.]+)", "[0-9.]+"), "one group .*but it has 0"),
    "pattern with two groups": (metric("").replace("'acc:", "'(acc|Acc):"), "one group.*but it has 2.*write .\\?:"),
    "unknown split": (metric("split = 'valid'"), "split must be 'train', 'validation' or 'test', but got 'valid'"),
    "split against the name": (metric("split = 'train'").replace("val_acc", "test_acc"), "must be 'test' for test_acc"),
    "split of test rows": (metric("split = 'test'"), "must be 'validation' for val_acc, .*another name"),
    "worst outside": (metric("worst = 2"), "worst must be within 0 to 1 for val_acc"),
    "mode against the name": (metric("mode = 'min'"), "must be 'max' for val_acc"),
    "grows against the name": (metric("grows = true"), "grows must be False for val_acc, but got True; or give it"),
    "grows no flag": (metric("grows = 'linear'"), "grows must be "),
    "divide 0": (metric("divide = 0"), "divide must be a number other than 0"),
    "metric named round": (f"{TOP}[metrics.round]\npattern = '(.*)'\n{SPACE}", "not be one that fedtune uses itself"),
    "column without a file": (metric("column = 'acc'"), "column must be of a file with columns, and without a pattern"),
    "file of two trials": (f"file = 'a.csv'\n{ALL}", "file must be another file for every trial"),
    "file of a kind": (f"file = '{{trial}}.xls'\n{TOP}[metrics.val_acc]\n{SPACE}", "must have a pattern, .* as a text"),
    "file with a name": (f"file = '{{trail}}.csv'\n{ALL}", "unknown name in file 'trail': did you mean 'trial'"),
    "seed said, not given": (f"seed = '{{seed}}'\n{ALL}", "seed must be .* where the command has {seed}"),
    "seed given, said none": (f"seed = 'none'\n{ALL}".replace("{lr}", "{lr} {seed}"), "seed must be '{seed}'"),
    "check not seeded": (
        f"{ALL.replace('{lr}', '{lr} {seed}')}[check]\ncommand = 'echo {{lr}}'\n",
        "it must be seeded as",
    ),
    "check without a hyperparameter": (f"{ALL}[check]\ncommand = 'echo'\n", "check.: every .* but lr would change"),
    "check not found": (f"{ALL}[check]\ncommand = 'eccho {{lr}}'\n", "check.: command must begin with a program"),
    "environment a list": (f"{ALL}[environment]\nA = [1]\n", "environment.A must be text or a number"),
    "environment of ours": (f"{ALL}[environment]\nFEDTUNE_ROWS = 'x'\n", "not of fedtune's own"),
    "environment named so": (f"{ALL}[environment]\n'a=b' = 'x'\n", "names of variables"),
    "pty a text": (f"pty = 'yes'\n{ALL}", "pty must be a valid boolean"),
    "resume without a checkpoint": (f"resume_arguments = '--resume'\n{ALL}", "beside {checkpoint}"),
    "checkpoint without numbers": (ALL.replace("{lr}", "{lr} {checkpoint}"), "finds the number of the round too"),
    "write to one file": (f"{ALL}[write.'c.yaml']\na = 1\n", "write.c.yaml must be another file for every"),
    "write of a kind": (f"{ALL}[write.'{{trial}}.ini']\na = 1\n", ".* must be a file that ends in .yaml"),
    "write from nothing": (f"{ALL}[write.'{{trial}}.yaml']\nfrom = 'no.yaml'\n", "from must be .*No such file"),
    "write of an unknown key": (
        f"{ALL}[write.'{{trial}}.toml']\nfrom = 'own.toml'\nspace.lt = 1\n",
        "unknown key of .*own.toml 'lt': did you mean 'lr'",
    ),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        read(tmp_path, text)
    assert "own.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.toml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(UserError, match=said):
            program_file.read(path)
    (tmp_path / "latin.toml").write_bytes(b"rounds = 3\nname = '\xe9'\n")
    with pytest.raises(UserError, match=r"latin.toml: a program file must be TOML in UTF-8, but.*0xe9"):
        program_file.read(tmp_path / "latin.toml")
