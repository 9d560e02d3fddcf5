"""Files of figures: where they are found, how each kind is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import finish, made, python, start
from support.rows import first

from fedtune.core.errors import UserError
from fedtune.programs.program_file import Program

# a program that writes its history in one way or another; `to` is its argument, a file or folder of the trial's own
SCRIPT = "import json, os, pickle, sys, time\nto, rounds = sys.argv[1], (0.1, 0.2, 0.3)\n"
COLUMN = "[metrics.val_acc]\ncolumn = '{}'\n"
READER = "def rows(path):\n    import pickle\n    return pickle.load(open(path, 'rb'))\n"
EACH = "for i in range(3):\n    {}\n    time.sleep(0.06)\n"  # longer than between two looks at files

WAYS = {  # what the program file says, the trial's file, and what the program does
    "a dict of lists, each round": (
        "h.json",
        "val_acc",
        EACH.format("json.dump({'val_acc': rounds[:i + 1]}, open(to, 'w'))"),
    ),
    "a list of dicts": ("h.json", "acc", EACH.format("json.dump([{'acc': x} for x in rounds[:i + 1]], open(to, 'w'))")),
    "a dict of numbers by index": ("h.json", "acc", "json.dump({'acc': dict(enumerate(rounds))}, open(to, 'w'))"),
    "a column inside others": ("h.json", "a.b.c", "json.dump({'a': {'b.c': rounds}}, open(to, 'w'))"),
    "places that are empty": ("h.json", "acc", "json.dump({'acc': [0.1, None, 0.2, 0.3, None]}, open(to, 'w'))"),
    "numbers of rounds": ("h.json", "acc", "json.dump({'round': [1, 2, 3], 'acc': rounds}, open(to, 'w'))"),
    "a table, each round, with empty cells and no last end": (
        "a.csv",
        "acc",
        "lines = ['round,x,acc']\n"
        + EACH.format("lines += [f'{i + 1},9,', f'{i + 1},,{rounds[i]}']; open(to, 'w').write('\\n'.join(lines))"),
    ),
    "lines of JSON": (
        "a.jsonl",
        "acc",
        "open(to, 'w').write(''.join(json.dumps({'acc': x, 'y': []}) + '\\n' for x in rounds))",
    ),
    "columns that come later": (
        "a.csv",
        "acc",
        "for c in ('acc 0.1 0.2 ', 'acc,x 0.1, 0.2, 0.3,5'):\n"
        "    open(to, 'w').write(c.replace(' ', '\\n'))\n    time.sleep(0.2)",
    ),
    "a name with what means something to glob": ("a?.csv", "acc", "open(to, 'w').write('acc\\n0.1\\n0.2\\n0.3\\n')"),
    "below a folder with a time stamp": (
        "out/**/metrics.csv",
        "acc",
        "os.makedirs(f'{to}/a/{time.time()}')\n"
        "open(f'{to}/a/{os.listdir(to + \"/a\")[0]}/metrics.csv', 'w').write('acc\\n0.1\\n0.2\\n0.3\\n')",
    ),
}


def program(folder: Path, file: str, column: str, script: str, more: str = "") -> Program:
    argument = "{folder}/" + file.partition("/**")[0]
    text = f"file = '{{folder}}/{file}'\n{more}{COLUMN.format(column)}"
    return python(folder, SCRIPT + script, text, 3, argument)


def accuracies(program: Program, folder: Path) -> list[float]:
    return [row["val_acc"] for row in finish(start(program, folder))]


@pytest.mark.parametrize(("file", "column", "script"), first(WAYS.values(), 6), ids=WAYS)
def test_figures_are_read_however_they_are_written(tmp_path: Path, file: str, column: str, script: str) -> None:
    own = program(tmp_path, file, column, script)
    assert accuracies(own, tmp_path) == [0.1, 0.2, 0.3]
    assert accuracies(own, tmp_path) == [0.1, 0.2, 0.3]  # what lies there now is of the attempt before


def test_a_reader_of_the_users_reads_any_file(tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text(READER)
    each = EACH.format("pickle.dump([{'acc': x} for x in rounds[:i + 1]], open(to, 'wb'))")
    own = program(tmp_path, "h.pkl", "acc", each, "reader = 'reader.py:rows'\n")
    assert accuracies(own, tmp_path) == [0.1, 0.2, 0.3]
    before = own.scripts()
    (tmp_path / "reader.py").write_text(READER.replace("return", "a = b = None\n    return a +"))
    again = program(tmp_path, "h.pkl", "acc", each, "reader = 'reader.py:rows'\n")
    assert again.scripts() != before
    with pytest.raises(UserError, match=r"reader.py:rows cannot read .*h.pkl: .*reader.py:4: TypeError: unsupported"):
        finish(start(again, tmp_path))


def test_patterns_are_searched_in_a_log(tmp_path: Path) -> None:
    script = "print('acc: 0.9')\n" + EACH.format("print('INFO acc:', rounds[i], file=open(to, 'a'))")
    text = "file = '{folder}/main.log'\n[metrics.val_acc]\npattern = 'acc: ([0-9.]+)'\n"
    own = python(tmp_path, SCRIPT + script, text, 3, "{folder}/main.log")
    assert accuracies(own, tmp_path) == [0.1, 0.2, 0.3]


def test_tensorboards_files_are_found_below_folders(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboardX").SummaryWriter(str(tmp_path / "events" / "2026-11-28-10-00-00"))
    for i in range(3):
        writer.add_scalar("Acc/val", 0.91 - i / 10, i)
        writer.add_scalar("other", 1, i)
    writer.close()
    text = "first_round = 0\nfile = '{{folder}}/out/{}'\n" + COLUMN.format("Acc/val")
    command = ["sh", "-c", "mkdir -p {folder}/out/ours; cp -rT events {folder}/out/ours/{seed}"]
    for seed, name in [(0, "**/"), (1, ""), (1, "*/**/")]:  # beside those before, and in their place
        rows = finish(start(made(tmp_path, command, text.format(name)), tmp_path, seed=seed))
        assert [row["val_acc"] for row in rows] == [0.91, 0.81, 0.71]
    with pytest.raises(UserError, match=r"'Acc/vel'.*known are .*Acc/val"):
        finish(start(made(tmp_path, command, text.format("").replace("/val", "/vel")), tmp_path, seed=8))
    twice = ["sh", "-c", "mkdir -p {folder}/out; cp -r events {folder}/out/a{seed}; cp -r events {folder}/out/b"]
    with pytest.raises(UserError, match="file must be one for each trial, but .*/out/ is both a9/2026-.* and b/2026-"):
        finish(start(made(tmp_path, twice, text.format("")), tmp_path, seed=9))


def written(content: str) -> str:
    return f"open(to, 'w').write('{content}\\n')"


WRONG = {
    "an earlier figure": (
        "h.json",
        "for c in ([0.1], [0.2, 0.3]):\n    json.dump({'acc': c}, open(to, 'w'))\n    time.sleep(0.2)",
        "must grow, but the 1. figure of val_acc was written anew",
    ),
    "fewer figures": (
        "h.json",
        "json.dump({'round': [1, 2, 3], 'acc': rounds[:1]}, open(to, 'w'))",
        "has 3 numbers and 1 of acc",
    ),
    "no JSON": ("h.json", "open(to, 'w').write('{\"acc\": [0.1, 0.2')", r"h.json cannot be read: "),
    "another column": ("h.json", "json.dump({'acx': rounds}, open(to, 'w'))", "column .*: did you mean 'acx'"),
    "two files": (
        "out/**/a.csv",
        "for x in 'xy': os.makedirs(f'{to}/{x}'); open(f'{to}/{x}/a.csv', 'w').write('acc\\n0.1\\n0.2\\n0.3\\n')",
        r"file must be one for each trial, but \{folder\}/out/\*\*/a.csv is both x/a.csv and y/a.csv in .*trial/out",
    ),
    "another place": (
        "out/a.csv",
        "to = to.replace('/a.csv', '/new')\nos.makedirs(to); open(to + '/a.csv', 'w').write('acc\\n0.1\\n')",
        r"must write \{folder\}/out/a.csv, but none is in .*/out; \*\* stands for folders whose names differ",
    ),
    "a table without the column": ("a.csv", written("round,loss\\n1,2"), "'acc'.*known are loss, round"),
    "a table without the column, while the program runs": (
        "a.csv",
        written("round,loss\\n1,2\\n") + "\nimport time; time.sleep(600)",
        "'acc'.*known are loss, round",
    ),
    "a table with too many cells": ("a.csv", written("acc\\n1,2"), "must have 1 columns on each line"),
    "a table with an open quote": ("a.csv", written('acc\\n"1'), "a.csv cannot be read: unexpected end of data"),
    "a table that lacks a round": ("a.csv", written("round,acc\\n2,0.5"), "val_acc of round 1 must come next"),
    "no object on a line": ("a.jsonl", written("[1]"), "must have a JSON object on each line, but got '.1.'"),
    "nothing": ("out/a.csv", "", r"must write \{folder\}/out/a.csv, but none is in .*trial/out; "),
}


@pytest.mark.parametrize(("file", "script", "said"), WRONG.values(), ids=WRONG)
def test_what_is_not_the_trials_history_is_refused(tmp_path: Path, file: str, script: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        accuracies(program(tmp_path, file, "acc", script), tmp_path)
