"""Completion in a shell: fedtune --print-completion bash | zsh | fish, and what may stand next on a command line.

    eval "$(fedtune --print-completion bash)"      # in ~/.bashrc; zsh alike
    fedtune --print-completion fish | source       # in ~/.config/fish/config.fish

Commands, options, algorithms, scenarios, data sets, spaces and study folders are completed.  A shell asks this program,
so that what it offers is what is installed; nothing of this is imported otherwise.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, unknown
from fedtune.user_code.command import Parser, guarded

SHELLS = ("bash", "zsh", "fish")


@guarded
def main(argv: list[str] | None = None) -> int:
    """Print what a shell evaluates to complete fedtune's commands; the exit status."""
    import argcomplete

    shell = "".join(argv or [])
    if shell not in SHELLS:
        raise UserError(f"{unknown('shell', shell, SHELLS)}; for instance fedtune --print-completion bash")
    print(argcomplete.shellcode(["fedtune"], shell=shell))
    return 0


def answer(commands: Mapping[str, str]) -> None:
    """Tell the shell what may stand next, and exit.  commands: each with a word on it."""
    import argcomplete

    argcomplete.autocomplete(parser(commands, os.environ.get("COMP_LINE", "").split()), always_complete_options="long")


def parser(commands: Mapping[str, str], words: list[str]) -> Parser:
    """All commands as one parser, of which only the one that is typed has its arguments.  words: what is typed."""
    top = Parser(prog="fedtune")
    each = top.add_subparsers()
    for name, what in commands.items():
        each.add_parser(name, help=what)
    if (typed := words[1] if len(words) > 1 else "") in commands:
        command = importlib.import_module(f"fedtune.commands.{typed}").parser()
        known = names()
        for action in command._actions:
            if action.dest in known:
                action.completer = partial(_completed, known[action.dest])
        each.choices[typed] = command
    return top


def names() -> dict[str, list[str]]:
    """What may stand for an argument, by its dest; argparse's choices are completed without, and a shell adds files."""
    from fedtune.core.hyper import hyperparameters
    from fedtune.data import datasets
    from fedtune.experiment import registry, scenario, scenarios
    from fedtune.nn import catalogue
    from fedtune.runs.files import kind_of

    shared, algorithms = hyperparameters(scenario.Scenario), registry.names()
    runs = sorted(filter(kind_of, Path("runs").glob("*")), key=lambda p: -p.stat().st_mtime)
    found = {f"field_{n}": list(map(str, hp.choices)) for n, hp in shared.items() if hp.choices}
    found |= {name: algorithms for name in ("algo", "what", "algos", "baselines")}
    found |= {name: list(map(str, runs)) for name in ("run", "runs")}
    return found | {
        "scenario": list(scenarios.SCENARIOS),
        "space": ["default", "paper", "wide"],
        "set": [f"{n}=" for n in vars(scenarios.OWN)],
        "vary": list(shared),
        "field_dataset": list(datasets.names()),
        "field_model": [*catalogue.WIDTHS, *catalogue.FAMILIES],
        "field_partition": list(scenario.PARTITIONS),
        "field_evaluation": list(scenario.EVALUATIONS),
    }


def _completed(names: Iterable[str], prefix: str, **_: Any) -> list[str]:
    """The names that begin so; after a comma that of the last of several, and where there is none, files."""
    from argcomplete.completers import FilesCompleter

    before, comma, last = prefix.rpartition(",")
    return [f"{before}{comma}{n}" for n in names if n.startswith(last)] or list(FilesCompleter()(prefix))
