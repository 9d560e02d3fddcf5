"""Completion in a shell: fedtune --print-completion bash | zsh | fish, and what may stand next on a command line.

    eval "$(fedtune --print-completion bash)"      # in ~/.bashrc; zsh alike
    fedtune --print-completion fish | source       # in ~/.config/fish/config.fish

Commands, options, algorithms, scenarios, data sets, spaces and study folders are completed.  A shell asks this program,
so that what it offers is what is installed; nothing of this is imported otherwise.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, unknown
from fedtune.user_code.command import Parser, guarded

SHELLS = ("bash", "zsh", "fish")
SPACES = ("default", "paper", "wide")
Completer = Callable[..., Iterable[str]]  # prefix=… -> words that begin with it


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
        command = importlib.import_module(f"fedtune.commands.{typed.replace('-', '_')}").parser()
        by_option = completers()
        for action in command._actions:
            if completer := by_option.get(action.dest):
                action.completer = completer
        each.choices[typed] = command
    return top


def completers() -> dict[str, Completer]:
    """What completes each argument, by its dest; argparse's choices and files are completed without."""
    from argcomplete.completers import FilesCompleter

    from fedtune.core.hyper import hyperparameters
    from fedtune.core.metrics import METRICS
    from fedtune.data import datasets
    from fedtune.experiment import registry, scenario, scenarios
    from fedtune.nn import catalogue

    def either(names: Iterable[str], *endings: str) -> Completer:
        files: Any = FilesCompleter(endings)
        return lambda prefix, **_: [*(n for n in names if n.startswith(prefix)), *files(prefix)]

    def several(names: Iterable[str]) -> Completer:
        def words(prefix: str, **_: Any) -> list[str]:
            before, comma, last = prefix.rpartition(",")
            return [f"{before}{comma}{n}" for n in names if n.startswith(last)]

        return words

    algorithms = registry.names()
    shared = hyperparameters(scenario.Scenario)
    fields = {f"field_{n}": either(map(str, k.choices)) for n, k in shared.items() if k.choices}
    what, settable = either(algorithms, "py", "toml"), [f"{n}=" for n in vars(scenarios.OWN)]
    return fields | {
        "algo": what,
        "what": what,
        "algos": several([*algorithms, "all"]),
        "baselines": several([*algorithms, "none"]),
        "scenario": either(scenarios.SCENARIOS),
        "space": either(SPACES, "py"),
        "set": either(settable),
        "vary": either(shared),
        "objective": several(list(METRICS)),
        "field_dataset": either(datasets.names(), "npz", "csv", "py"),
        "field_model": either([*catalogue.WIDTHS, *catalogue.FAMILIES], "py"),
        "field_partition": either(scenario.PARTITIONS, "npz"),
        "field_evaluation": either(scenario.EVALUATIONS),
        "run": _runs,
        "runs": _runs,
    }


def _runs(prefix: str, **_: Any) -> list[str]:
    """The studies in runs/, the newest first; a shell itself completes other folders."""
    from fedtune.runs.files import kind_of

    newest = sorted(Path("runs").glob("*"), key=lambda p: -p.stat().st_mtime)
    return [str(p) for p in newest if str(p).startswith(prefix) and kind_of(p)]
