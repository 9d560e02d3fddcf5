"""Which runs a paper's table or figure is made of: every row on every column, one run a seed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.federated import registry
from fedtune.federated.experiment import Experiment, with_seed
from fedtune.studies import substitution
from fedtune.studies.paper_tables import GRIDS, Column, Grid, Panel, Row
from fedtune.studies.ray_tasks import Run


def wanted(args: argparse.Namespace) -> Grid:
    """The table as the arguments want it; UserError for a table or data set that there is not."""
    if args.table not in GRIDS:
        raise unknown("table", args.table, GRIDS)
    grid = GRIDS[args.table]
    if args.dataset:
        datasets.describe(args.dataset)
        grid = substitution.on(grid, args.dataset)
    if args.parts:
        grid = substitution.parts(grid, args.parts.split(","))
    if args.all_columns and not args.quick:
        raise UserError("--all-columns goes with --quick, which else takes three; without --quick all are played")
    if args.quick:
        grid = substitution.quick(grid, args.all_columns)
    if args.rounds:
        grid = grid._replace(panels=tuple(substitution.lasting(p, args.rounds) for p in grid.panels))
    return grid._replace(seeds=args.seeds or grid.seeds)


class Spot(NamedTuple):
    """A row on a column, and its runs, one a seed."""

    panel: Panel
    row: Row
    column: Column
    runs: tuple[Run, ...]


def planned(grid: Grid, preset: str, device: str) -> Iterator[Spot]:
    """Every row on every column of every part.  What is the same under two names is one run.

    preset: other defaults, for the algorithms that have it.  UserError for what can be told to go wrong.
    """
    classes = {n: registry.find(n) for n in registry.names()}
    known = {"as_text", *(p for cls in classes.values() for p in cls.presets)}
    if preset not in known:
        raise unknown("preset", preset, known)
    checked: set[Any] = set()
    runs: dict[Any, Run] = {}
    for panel in grid.panels:
        for column in panel.columns:
            for row in panel.rows:
                config, own = column.config | row.config, preset if preset in classes[row.algorithm].presets else ""
                first = Experiment(row.algorithm, column.setting(), 0, device=device, preset=own)
                _check(first, config, column, checked)
                played = []
                for seed in range(grid.seeds):
                    key = (row.algorithm, column.setting(), json.dumps(config, sort_keys=True), seed)
                    label = f"{row.label}, {column.label}, seed {seed}"
                    played.append(runs.setdefault(key, Run(label, with_seed(first, seed), config)))
                yield Spot(panel, row, column, tuple(played))


def _check(experiment: Experiment, config: dict[str, Any], column: Column, checked: set[Any]) -> None:
    """UserError for what cannot be played; a warning for a hyperparameter that is varied without effect."""
    alg, scenario = experiment.resolve(config)
    kind = (alg, scenario.model, scenario.features, scenario.dataset, scenario.evaluation, scenario.clients)
    if kind not in checked:  # large families take seconds
        experiment.check(config)
        checked.add(kind)
    for name, why in alg.idle(scenario).items():
        if name in column.config and name not in checked:
            say(f"warning: {name} has no effect here: {why}")
            checked.add(name)
