"""The runs that a paper's table or figure consists of: every row on every column, one run per seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedtune.analysis.reproduction import substitution
from fedtune.analysis.reproduction.options import OURS, ReproductionOptions
from fedtune.analysis.reproduction.paper_grid import Column, GridRow, Panel, PaperGrid
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment, fitting
from fedtune.studies.ray_tasks import RunTask
from fedtune.user_code import user_files


def requested(options: ReproductionOptions) -> PaperGrid:
    """The table that the options ask for; UserError for a table or data set that does not exist."""
    if options.table not in GRIDS:
        raise unknown("table", options.table, GRIDS, "python -m fedtune.analysis.reproduce --list")
    grid = GRIDS[options.table]
    if options.dataset:
        if user_files.is_reference(options.dataset, datasets.SOURCES):
            raise UserError(
                f"a paper's table is trained on public data sets, but got {options.dataset!r}; fedtune "
                "compare takes data of yours"
            )
        datasets.describe(options.dataset)
        grid = substitution.on(grid, options.dataset)
    if options.parts:
        grid = substitution.parts(grid, options.parts.split(","))
    if options.algos:
        grid = _of_algorithms(grid, options.algos.split(","))
    if options.all_columns and not options.quick:
        raise UserError("--all-columns needs --quick, which runs three columns by default; without --quick all are run")
    if options.quick:
        grid = substitution.quick(grid, options.all_columns)
    if options.rounds:
        grid = grid._replace(panels=tuple(substitution.lasting(p, options.rounds) for p in grid.panels))
    return grid._replace(seeds=options.seeds or grid.seeds)


def _of_algorithms(grid: PaperGrid, names: Sequence[str]) -> PaperGrid:
    """The rows of these algorithms alone; UserError for one that has none."""
    names_there = {row.algorithm for panel in grid.panels for column in panel.columns for row in rows_of(panel, column)}
    for name in names:
        if user_files.is_reference(name, names_there):
            raise UserError(
                f"a paper's table has rows of the paper's algorithms, but got {name!r}; fedtune compare compares "
                "yours with others"
            )
        if name not in names_there:
            raise unknown("algorithm of the table", name, names_there)
    return grid._replace(panels=tuple(panel._replace(algorithms=tuple(names)) for panel in grid.panels))


class Spot(NamedTuple):
    """One place in a table: a row (under its preset) on a column, with its runs, one per seed."""

    panel: Panel
    row: GridRow
    column: Column
    runs: tuple[RunTask, ...]


def planned(
    grid: PaperGrid, presets: str, device: str, test_every: int = 1, all_classes: bool = False
) -> Iterator[Spot]:
    """Every row on every column of every part; the same configuration under two names is one run.

    test_every: the rounds in which test rows are scored, where the grid needs no others.
    all_classes: whether rows of all classes are scored where no figure is of them, too.
    presets: names separated by commas; a row for each that its algorithm has.  UserError for what would fail later.
    """
    names, every = _presets(presets), 1 if grid.needs_every_round else test_every
    checked: set[Any] = set()
    runs: dict[Any, RunTask] = {}
    for panel in grid.panels:
        for column in panel.columns:
            scenario = column.to_scenario() if all_classes else panel.scenario_of(column)
            for row in (r for plain in rows_of(panel, column) for r in _under(plain, names)):
                declared = Experiment(algorithm=row.algorithm, scenario=scenario).hyperparameters()
                config = {n: v for n, v in column.config.items() if n in declared} | row.config
                first = Experiment(
                    algorithm=row.algorithm,
                    scenario=scenario,
                    seed=0,
                    device=device,
                    preset=row.preset,
                    test_every=every,
                    trainer=ENGINE,
                )
                _check(first, config, column, checked)
                name = f"{row.label}, {row.preset}" if row.preset and len(names) > 1 else row.label
                of_seeds = []
                for seed in range(grid.seeds):
                    key = (row.algorithm, row.preset, scenario, json.dumps(config, sort_keys=True), seed)
                    run = RunTask(f"{name}, {column.label}, seed {seed}", first.with_seed(seed), config)
                    of_seeds.append(runs.setdefault(key, run))
                yield Spot(panel, row, column, tuple(of_seeds))


def rows_of(panel: Panel, column: Column) -> tuple[GridRow, ...]:
    """The part's own rows, or all algorithms that run on the column's architectures, as they do; of those asked for."""
    if panel.rows:
        return tuple(row for row in panel.rows if row.algorithm in (panel.algorithms or (row.algorithm,)))
    fits = (line.split(" ") for line in fitting(column.to_scenario()))
    mixed = {name: dict(registry.find(name).for_mixed_models) if changes else {} for name, *changes in fits}
    return tuple(
        GridRow(n, n, v | panel.values.get(n, {})) for n, v in mixed.items() if n in (panel.algorithms or mixed)
    )


def _presets(text: str) -> list[str]:
    """Presets by name, each once; UserError for one that no algorithm has."""
    names = list(dict.fromkeys(text.split(",")))
    preset_names = {OURS, "as_text", *(p for n in registry.names() for p in registry.find(n).presets)}
    for name in names:
        if name not in preset_names:
            raise unknown("preset", name, preset_names)
    return names


def _under(row: GridRow, presets: Sequence[str]) -> list[GridRow]:
    """The row under each preset; if its algorithm lacks one, the defaults take its place, once."""
    own = registry.find(row.algorithm).presets
    return [row._replace(preset=p) for p in dict.fromkeys(p if p in own else "" for p in presets)]


def _check(experiment: Experiment, config: dict[str, Any], column: Column, checked: set[Any]) -> None:
    """UserError for an experiment that cannot run; a warning if a varied hyperparameter has no effect."""
    alg, scenario = experiment.resolve(config)
    kind = (alg, scenario.model, scenario.features, scenario.dataset, scenario.evaluation, scenario.clients)
    if kind not in checked:  # large families take seconds
        experiment.check(config)
        checked.add(kind)
    for name, why in alg.idle(scenario).items():
        if name in column.config and name not in checked:
            say(f"warning: {name} has no effect here: {why}")
            checked.add(name)
