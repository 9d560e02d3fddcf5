"""Completion in a shell: fedtune --print-completion bash | zsh | fish, and what may stand next on a command line.

    eval "$(fedtune --print-completion bash)"      # in ~/.bashrc; zsh alike
    fedtune --print-completion fish | source       # in ~/.config/fish/config.fish

A shell asks this program, so that what it offers is what is installed; nothing of this is imported otherwise.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import argcomplete

from fedtune.user_code.command import Parser, guarded


@guarded
def main(argv: list[str] | None = None) -> int:
    """Print what a shell evaluates to complete fedtune's commands; the exit status."""
    shells = Parser(prog="fedtune --print-completion")
    shells.add_argument("shell", choices=("bash", "fish", "zsh"))
    print(argcomplete.shellcode(["fedtune"], shell=shells.parse_args(argv).shell))
    return 0


def answer(commands: Mapping[str, str]) -> None:
    """Tell the shell what may stand next, and exit.  commands: each with a word on it."""
    top, (_, typed, *_) = Parser(prog="fedtune"), [*os.environ.get("COMP_LINE", "").split(), "", ""]
    each = top.add_subparsers()
    for name, what in commands.items():
        each.add_parser(name, help=what)
    if typed in commands:  # only the command that is typed needs its arguments
        each.choices[typed] = importlib.import_module(f"fedtune.commands.{typed}").parser()
        known = _names()
        for action in each.choices[typed]._actions:
            if action.dest in known:
                action.completer = partial(_completed, known[action.dest])  # type: ignore[attr-defined]
    argcomplete.autocomplete(top, always_complete_options="long")


def _names() -> dict[str, Iterable[str]]:
    """What may stand for an argument, by its dest; argparse's choices are completed without, and a shell adds files."""
    from fedtune.core.hyper import hyperparameters
    from fedtune.data import datasets
    from fedtune.experiment import registry, scenario, scenarios
    from fedtune.nn import catalogue
    from fedtune.runs.files import kind_of

    shared, studies = hyperparameters(scenario.Scenario), [str(p) for p in Path("runs").glob("*") if kind_of(p)]
    of_fields = {f"field_{n}": list(map(str, hp.choices)) for n, hp in shared.items() if hp.choices}
    of_algorithms = dict.fromkeys(("algo", "what", "algos", "baselines", "borrow"), registry.names())
    return {
        **of_fields,
        **of_algorithms,
        **dict.fromkeys(("run", "runs"), studies),
        "scenario": scenarios.SCENARIOS,
        "space": ("default", "paper", "wide"),
        "set": [f"{n}=" for n in vars(scenarios.OWN)],
        "vary": shared,
        "field_dataset": datasets.names(),
        "field_model": (*catalogue.WIDTHS, *catalogue.FAMILIES),
        "field_partition": scenario.PARTITIONS,
        "field_evaluation": scenario.EVALUATIONS,
    }


def _completed(names: Iterable[str], prefix: str, **_: Any) -> list[str]:
    """The names that begin so; after a comma that of the last of several, and where there is none, files."""
    before, comma, last = prefix.rpartition(",")
    found = [f"{before}{comma}{n}" for n in names if n.startswith(last)]
    return found or list(argcomplete.completers.FilesCompleter()(prefix))
