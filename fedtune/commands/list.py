"""fedtune list: all algorithms, spaces, scenarios and data sets, with every hyperparameter."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.hyper import Knob, knobs
from fedtune.data import datasets
from fedtune.experiment import registry, scenarios
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import DEFAULT, SCENARIOS
from fedtune.nn import catalogue
from fedtune.programs.naming import is_program
from fedtune.user_code import entry_points, user_files
from fedtune.user_code.command import Parser, guarded

if TYPE_CHECKING:
    from fedtune.experiment.algorithm import Algorithm


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune list`."""
    p = Parser(prog="fedtune list", description="List algorithms, spaces, settings and data sets.")
    p.add_argument(
        "algo", nargs="?", metavar="ALGORITHM", help="only this algorithm, with its description; or FILE.py[:NAME]"
    )
    p.add_argument(
        "--spaces",
        metavar="A[:NAME],B[:NAME]",
        help="two algorithms' search spaces side by side (default space, or NAME); * marks where they differ",
    )
    p.add_argument(
        "--scenario", default=DEFAULT, metavar="NAME", help=f"with --spaces: the setting (default {DEFAULT})"
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune list` and return its exit status."""
    args = parser().parse_args(argv)
    if args.algo and is_program(args.algo):
        raise UserError(f"fedtune list shows algorithms, but got {args.algo}, a program; its file says what it has")
    console = terminal.console()
    if args.spaces:
        console.print(_spaces(args.spaces, args.scenario))
        return 0
    for name in [user_files.take_each(args.algo, registry.names())[0]] if args.algo else registry.names():
        _algorithm(console, name, whole=bool(args.algo))
    if not args.algo:
        console.print(_knobs("scenario: hyperparameters that every algorithm has", knobs(Scenario)))
        console.print(_scenarios())
        console.print(_datasets())
        console.print("models: " + ", ".join(f"{n} (D = {d})" for n, d in catalogue.WIDTHS.items()))
        forms = (f"{n}({','.join(f'{o}={v}' for o, v in own.items())})" for n, own in catalogue.OPTIONS.items())
        console.print("models with options, D growing with width: " + ", ".join(forms))
        console.print("families of models: " + "; ".join(f"{n}: {', '.join(m)}" for n, m in catalogue.FAMILIES.items()))
        console.print(
            "your own model: FILE.py:NAME or FILE.py:NAME(option=value,…), a function (shape, classes, **options) that "
            "returns a torch.nn.Module with the parts body and head, or any with head='LAYER' naming its last layer; "
            "several with commas between them, ours too: client i runs number i mod their count"
        )
        if added := entry_points.names(catalogue.GROUP):
            console.print("models of installed packages: " + ", ".join(added))
    return 0


def _algorithm(console: Console, name: str, whole: bool) -> None:
    """An algorithm's text, hyperparameters, presets and spaces; its file needs PyTorch and its spaces need Ray."""
    cls = registry.find(name)
    from fedtune.experiment.experiment import Experiment, beside_text
    from fedtune.tuning import space as spaces

    text = (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip()
    console.print(name, style="bold", end="  ")
    console.print(text if whole else text.partition("\n")[0])
    own = knobs(cls)
    if own:
        console.print(_knobs("", own, cls()))
    for preset, values in cls.presets.items():
        line = ", ".join(f"{n}={v}" for n, v in values.items())
        console.print(f"  --preset {preset}: {line}")
    if left := beside_text(cls):
        console.print(f"  {left}")
    for space in spaces.names(name):
        found = spaces.load(space, Experiment(name, Scenario()))
        what = f"{terminal.several(len(found.points), 'point')}: " if found.is_grid else ""
        line = ", ".join(f"{n} {t}" for n, t in found.text().items())
        console.print(f"  space {space}: {what}{line}")
    console.print()


def _spaces(pair: str, scenario: str) -> Table:
    """Two spaces side by side: first what all algorithms share, then what is each one's own."""
    from fedtune.experiment.experiment import Experiment
    from fedtune.tuning import shared
    from fedtune.tuning import space as spaces

    chosen = [typed.partition(":") for typed in pair.split(",")]
    if len(chosen) != 2:
        raise UserError(f"--spaces compares two spaces, but got {pair!r}; for instance fedbabu,fedavgft:wide")
    setting = scenarios.find(scenario)
    texts = []
    for name, _, space in chosen:
        registry.find(name)
        texts.append(spaces.load(space or "default", Experiment(name, setting)).text())
    table = Table("", "name", *pair.split(","), title=f"search spaces on {scenario}", title_justify="left", box=None)
    both = dict.fromkeys([*texts[0], *texts[1]])
    alike = [n for n in both if n in shared.WIDE or n in knobs(Scenario)]
    for n in (*alike, *(n for n in both if n not in alike)):
        cells = [text.get(n, "-") for text in texts]
        table.add_row("*" if cells[0] != cells[1] else "", n, *cells)
    return table


def _knobs(title: str, declared: dict[str, Knob], instance: Algorithm | None = None) -> Table:
    from fedtune.experiment.algorithm import first_round

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    for column in ("name", "symbol", "default", "range", "first effect", "what it is"):
        table.add_column(column, overflow="fold")
    for name, knob in declared.items():
        since = "1" if instance is None else str(first_round(instance, name))
        since += " by default" if isinstance(knob.first_round, str) else ""
        table.add_row(name, knob.symbol, str(knob.default), knob.range_text(), f"round {since}", knob.help)
    return table


def _scenarios() -> Table:
    table = Table(title="scenarios (any field can be overridden: --clients 50)", title_justify="left", box=None)
    for column in ("name", "data set", "model", "clients", "rounds", "partition", "other fields that differ"):
        table.add_column(column, overflow="fold")
    shown = ("dataset", "model", "clients", "rounds", "partition")
    for name, scenario in SCENARIOS.items():
        cells = [str(getattr(scenario, field)) for field in shown]
        rest = {f.name: f.default for f in dataclasses.fields(Scenario) if f.name not in shown}
        other = [f"{n} {v}" for n, default in rest.items() if (v := getattr(scenario, n)) != default]
        table.add_row(name, *cells, ", ".join(other) or "-")
    return table


def _datasets() -> Table:
    table = Table(title="data sets", title_justify="left", box=None)
    for column in ("name", "image", "classes"):
        table.add_column(column)
    for name in datasets.SOURCES:
        *image, classes = datasets.describe(name)
        table.add_row(name, "×".join(map(str, image)), str(classes))
    for name in datasets.names()[len(datasets.SOURCES) :]:
        table.add_row(name, "of an installed package", "")
    return table
