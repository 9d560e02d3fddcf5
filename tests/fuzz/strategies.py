"""Hypothesis strategies of what a user, a file system or an attacker may give: every one holds good values as well."""

from __future__ import annotations

import argparse
import copy
import importlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from fedtune.__main__ import COMMANDS

NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "8",
    "-1",
    "0.5",
    "1e-9",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "9223372036854775808",
    "1e12",
    "1000000000000",
    "1e19",
    "1e30",
    "1" + "0" * 30,
    "1e308",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_000",
    "١٢",
    "+5",
    "9" * 5000,
)
TEXTS = (
    "",
    " ",
    "  x ",
    "-",
    "--",
    "-x",
    "--x",
    ".",
    "..",
    "/",
    "//",
    "~",
    "a/b",
    "a" * 300,
    "é" * 130,
    "\n",
    "a\nb",
    "\x1b[31mred",
    "\t",
    "x\r",
    "\udcff",
    "None",
    "null",
    "true",
    "[]",
    "{}",
    "=",
    "a=",
    "=1",
    "a=1",
    ",",
    "a,b",
    ",,",
    "(" * 500,
    ":",
    "x:y",
    "file.py",
    "file.py:",
    "file.py:a(b=1)",
    "file.py:(",
    "http://[::1",
    "http://" + "a" * 70 + ".b:1",
    "h:99999",
    "[::1]:1",
    "ray://",
    "ray://x:1",
    "http://x:y",
    "\u202eabc",
    "${HOME}",
    "%s%n",
    "$(x)",
    "💥",
    "con",
    "a" * 5000,
    "plain-file",
    "folder",
    "plain-file/x",
    "folder/x.py",
    "loop",
    "code.py",
    "code.py:SPACE",
    "exits.py",
    "numbers.npz",
)
texts = st.one_of(
    st.sampled_from(TEXTS),
    st.sampled_from(NUMBERS),
    st.text(st.characters(exclude_characters="\0"), max_size=40),
    st.floats().map(str),
    st.integers().map(str),
)

GOOD: dict[str, tuple[str, ...]] = {
    "algo": ("gfpl", "fedavg", "local", "fedprox"),
    "algos": ("gfpl,fedavg", "local", "all"),
    "scenario": ("digits-w4", "digits-fedgen"),
    "space": ("default", "paper", "wide"),
    "scheduler": ("asha", "none", "pbt", "hyperband", "median"),
    "searcher": ("tpe", "random", "grid", "cmaes", "gp"),
    "set": ("lr=0.1", "lam=1", "momentum=0"),
    "also": ("lr", "lr=0.01..0.1"),
    "ranges": ("lr=0.01..0.1",),
    "dataset": ("digits",),
    "partition": ("dirichlet", "fedgen", "iid", "shards", "quantity", "power-law", "ways-shots"),
    "objective": ("val_loss", "val_acc,comm_mb"),
    "subject_to": ("comm_mb<=20",),
    "model": ("mlp", "cnn8"),
    "table": ("gfpl-fig6", "gfpl-table1"),
    "action": ("list", "logs", "stop"),
    "config": ("best.yaml",),
}
RUN = ("run", "folder", "plain-file", "nowhere", "a" * 300, "", ".", "run/run.json", "loop")


@cache
def actions(command: str) -> tuple[argparse.Action, ...]:
    """The arguments that a command declares."""
    parser = importlib.import_module(f"fedtune.commands.{command.replace('-', '_')}").parser()
    return tuple(a for a in parser._actions if not a.dest.startswith("help") and a.dest not in ("debug", "watch"))


def value(action: argparse.Action) -> st.SearchStrategy[str]:
    """A value of an argument: a good one, one of its choices, a number, a text."""
    name = action.dest.removeprefix("field_")
    good = [*GOOD.get(name, ()), *map(str, action.choices or ()), *(RUN if name in ("run", "runs") else ())]
    strategies: list[st.SearchStrategy[str]] = [texts]
    if good:
        strategies += [st.sampled_from(good)]
    return st.one_of(strategies)


@st.composite
def command_lines(draw: st.DrawFn, commands: Sequence[str] = tuple(COMMANDS)) -> list[str]:
    """A command with up to four of its arguments, and what a sensible one would have."""
    command = draw(st.sampled_from(commands))
    known = actions(command)
    words = [command]
    optional = [a for a in known if a.option_strings]
    chosen = draw(st.lists(st.sampled_from(optional), max_size=3, unique_by=id)) if optional else []
    given = {a.dest for a in chosen}
    if command in ("search", "run") and "algo" not in given and draw(st.integers(0, 9)):
        words += ["--algo", draw(st.sampled_from(GOOD["algo"]))]
    if command == "compare" and "algos" not in given:
        words += ["--algos", "gfpl,fedavg"]
    if command == "extend" and not given & {"trials", "rounds"}:
        words += ["--trials", "2"]
    for action in chosen:
        flag = draw(st.sampled_from(action.option_strings))
        if action.nargs == 0:
            words.append(flag)
        elif draw(st.booleans()) and flag.startswith("--"):
            words.append(f"{flag}={draw(value(action))}")
        else:
            words += [flag, draw(value(action))]
    for action in known:
        if not action.option_strings and draw(st.integers(0, 19)):
            words.append(draw(value(action)))
    return words


# ---- values of JSON, YAML and Python

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([*TEXTS, "a\0b"]),
    st.sampled_from([2**31, 2**63, 10**30, -1, 0, 1e308]),
    st.text(max_size=20),
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def deep(depth: int) -> str:
    """JSON and YAML that is nested so deeply."""
    return "[" * depth + "]" * depth


@st.composite
def mutated(draw: st.DrawFn, good: Any) -> Any:
    """A good record in which one to three entries are gone, added, or of another value."""
    found = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        at = found
        while isinstance(at, dict | list) and at:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            inner = at[key]
            if isinstance(inner, dict | list) and inner and draw(st.integers(0, 2)):
                at = inner
                continue
            how = draw(st.integers(0, 9))
            if how == 0:
                del at[key]
            elif how == 1 and isinstance(at, dict):
                at[draw(st.text(max_size=8))] = draw(json_values)
            elif how == 2 and isinstance(at, dict):
                at[key] = at[draw(st.sampled_from(sorted(at)))]
            else:
                at[key] = draw(json_values)
            break
    return found


# ---- damage to files

DAMAGE: dict[str, Callable[[bytes, int, bytes], bytes]] = {
    "emptied": lambda content, at, noise: b"",
    "cut": lambda content, at, noise: content[: at % (len(content) + 1)],
    "zeroed": lambda content, at, noise: (
        content[: at % (len(content) + 1)] + b"\0" * 64 + content[at % (len(content) + 1) + 64 :]
    ),
    "flipped": lambda content, at, noise: bytes(
        b ^ (0x55 if i == at % max(1, len(content)) else 0) for i, b in enumerate(content)
    ),
    "noise": lambda content, at, noise: noise,
    "overwritten": lambda content, at, noise: (
        content[: at % (len(content) + 1)] + noise + content[at % (len(content) + 1) + len(noise) :]
    ),
    "twice": lambda content, at, noise: content + content,
    "deep": lambda content, at, noise: deep(100_000).encode(),
    "not utf-8": lambda content, at, noise: b"\xff\xfe" + content,
}
damages = st.tuples(
    st.sampled_from([*DAMAGE, "deleted", "a folder", "a broken link", "another file"]),
    st.integers(0, 10**6),
    st.binary(max_size=64),
)


# ---- search spaces, as files have them

names = st.sampled_from(["lam", "lr", "components", "momentum", "optimizer", "linkage", "clip", "nothing", "", "é"])
constants = st.one_of(
    st.integers(-3, 400), st.floats(), st.sampled_from(["sgd", "adam", "complete", "", None, True, 10**30])
)
ranges = st.builds(
    lambda kind, low, high, q: f"tune.{kind}({low!r}, {high!r}{q})",
    st.sampled_from(["uniform", "loguniform", "randint", "lograndint", "randn", "quniform"]),
    constants,
    constants,
    st.sampled_from(["", "", ", 0.1", ", 0"]),
)
lists = st.lists(constants, max_size=5).map(repr)
domains = st.one_of(
    ranges,
    lists.map(lambda v: f"tune.choice({v})"),
    lists.map(lambda v: f"tune.grid_search({v})"),
    json_values.map(lambda v: f"{{'grid_search': {v!r}}}"),
    constants.map(repr),
    json_values.map(repr),
    lists,
    st.just("tune.sample_from(lambda spec: 1)"),
    st.just("list(range(10**4))"),
    st.just("tune.grid_search(list(range(10**4)))"),
    st.builds(lambda r, n, v: f"when({r}, **{{{n!r}: {v!r}}})", ranges, names, constants),
)
keys = st.one_of(names.map(repr), names.map(repr), names.map(repr), st.sampled_from(["1", "None", "(1,)", "1.5"]))
space_files = st.one_of(
    st.dictionaries(keys, domains, max_size=4).map(
        lambda d: "SPACE = {" + ", ".join(f"{k}: {v}" for k, v in d.items()) + "}"
    ),
    st.lists(st.dictionaries(keys, constants.map(repr), max_size=3), max_size=4).map(
        lambda points: (
            "SPACE = [" + ", ".join("{" + ", ".join(f"{k}: {v}" for k, v in d.items()) + "}" for d in points) + "]"
        )
    ),
    json_values.map(lambda v: f"SPACE = {v!r}"),
    st.sampled_from(
        [
            "import sys; sys.exit()",
            "import sys; sys.exit(3)",
            "raise KeyboardInterrupt",
            "1/0",
            "raise MemoryError",
            "import nothing_here",
            "def f(): return f()\nf()",
            "SPACE = {}\nSPACE['lam'] = SPACE",
            "import os; os._exit",
            "\0",
            "print('x')",
            "SPACE = None",
            "raise SystemExit('bye')",
            "raise BaseException('x')",
            "class X(dict): pass\nSPACE = X()",
        ]
    ),
)


def dumped(value: Any) -> str:
    """JSON, with what Python's writer takes and others do not: NaN and Infinity; surrogates stay escaped."""
    return json.dumps(value)
