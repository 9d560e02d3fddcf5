"""fedtune list: the algorithms, a line each; one algorithm whole; models, scenarios, data sets or metrics."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.metrics import METRICS
from fedtune.data import datasets
from fedtune.experiment import registry
from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.nn import catalogue
from fedtune.programs.naming import is_file
from fedtune.user_code import entry_points, user_files
from fedtune.user_code.command import Parser, guarded

if TYPE_CHECKING:
    from fedtune.experiment.algorithm import Algorithm


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune list`."""
    p = Parser(
        prog="fedtune list",
        description="List algorithms, a line each; or models, scenarios, data, metrics.",
        examples=("fedtune list gfpl", "fedtune list fedbabu fedavgft"),
    )
    p.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"algorithms or FILE.py[:NAME]: their text, hyperparameters and spaces; or {', '.join(TOPICS)}",
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune list` and return its exit status."""
    args = parser().parse_args(argv)
    if programs := [word for word in args.what if is_file(word)]:
        raise UserError(f"fedtune list shows algorithms, but got {programs[0]}, a program; its file says what it has")
    console = terminal.console()
    for what in args.what:
        if what in TOPICS:
            TOPICS[what](console)
        else:
            _algorithm(console, user_files.take_each(what, registry.names())[0])
    if not args.what:
        for name in registry.names():
            console.print(f"{name:<12} {registry.summary(name)}", soft_wrap=True)
        console.print(f"\nfedtune list NAME shows one of them; fedtune list {'|'.join(TOPICS)} what else there is")
    return 0


def _algorithm(console: Console, name: str) -> None:
    cls = registry.find(name)
    from fedtune.experiment import refusals
    from fedtune.experiment.experiment import Experiment, beside_text
    from fedtune.tuning import space as spaces

    text = (sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip()
    console.print(name, style="bold", end="  ")
    console.print(text)
    if own := hyperparameters(cls):
        _hyperparameters(console, "", own, cls())
    for preset, values in cls.presets.items():
        console.print(f"  --preset {preset}: {', '.join(f'{n}={v}' for n, v in values.items())}")
    if presets_text := beside_text(cls):
        console.print(f"  {presets_text}")
    why = next(refusals.unfit_for_privacy(name, cls()), "can be given")
    console.print(f"  --privacy client {why.partition('; use')[0]}")
    for space in spaces.names(name):
        loaded = spaces.load(space, Experiment(algorithm=name, scenario=Scenario()))
        what = f"{terminal.several(len(loaded.points), 'point')}: " if loaded.is_grid else ""
        line = ", ".join(f"{n} {t}" for n, t in loaded.text().items())
        console.print(f"  space {space}: {what}{line}")


def _table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def _hyperparameters(
    console: Console, title: str, declared: dict[str, Hyperparameter], instance: Algorithm | None = None
) -> None:
    rows = []
    for name, hp in declared.items():
        since = 1
        if instance:
            from fedtune.experiment.algorithm import first_round

            since = first_round(instance, name)
        effect = f"round {since}{' by default' * isinstance(hp.first_round, str)}"
        rows.append((name, hp.symbol, hp.default, hp.range_text(), effect, hp.help))
    _table(console, title, ("name", "symbol", "default", "range", "first effect", "what it is"), rows)


def _scenarios(console: Console) -> None:
    shown = ("dataset", "model", "clients", "rounds", "partition")
    rest = {f.name: f.default for f in dataclasses.fields(Scenario) if f.name not in shown}
    rows = []
    for name, scenario in SCENARIOS.items():
        other = [f"{n} {v}" for n, default in rest.items() if (v := getattr(scenario, n)) != default]
        rows.append((name, *(getattr(scenario, field) for field in shown), ", ".join(other) or "-"))
    columns = ("name", *shown, "other fields that differ")
    _table(console, "scenarios (--clients 50 overrides a field)", columns, rows)
    of_all = "hyperparameters of local training, which every algorithm has"
    _hyperparameters(console, of_all, hyperparameters(Scenario))


def _datasets(console: Console) -> None:
    rows: list[Sequence[object]] = []
    for name in datasets.SOURCES:
        *image, classes = datasets.describe(name)
        rows.append((name, "×".join(map(str, image)), classes))
    rows += [(name, "of an installed package", "") for name in datasets.names()[len(datasets.SOURCES) :]]
    _table(console, "data sets", ("name", "image", "classes"), rows)


def _models(console: Console) -> None:
    console.print("models: " + ", ".join(f"{n} (D = {d})" for n, d in catalogue.WIDTHS.items()))
    forms = (f"{n}({','.join(f'{o}={v}' for o, v in own.items())})" for n, own in catalogue.OPTIONS.items())
    console.print("models with options, D growing with width: " + ", ".join(forms))
    console.print("families of models: " + "; ".join(f"{n}: {', '.join(m)}" for n, m in catalogue.FAMILIES.items()))
    console.print(
        "your own model: FILE.py:NAME or FILE.py:NAME(option=value,…), a function (shape, classes, **options) that "
        "returns a torch.nn.Module with the parts body and head, or any with head='LAYER' naming its last layer; "
        "several with commas between them, built-in ones too: client i runs number i mod their count"
    )
    if added := entry_points.names(catalogue.GROUP):
        console.print("models of installed packages: " + ", ".join(added))


def _metrics(console: Console) -> None:
    rows = ((name, metric.goal, metric.help) for name, metric in METRICS.items())
    _table(console, "metrics of a round", ("name", "goal", "what it is"), rows)


TOPICS = {"models": _models, "scenarios": _scenarios, "data": _datasets, "metrics": _metrics}
