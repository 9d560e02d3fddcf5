"""Training every configuration of a grid on several seeds, for a table that searches are simulated on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtune.analysis.simulation import tabulated
from fedtune.analysis.simulation.options import TabulationOptions
from fedtune.cluster import ray_start
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.core.terminal import command_line, say, several
from fedtune.core.workload import Workload
from fedtune.runs import provenance, trial_states
from fedtune.runs.files import RunFiles
from fedtune.studies import ray_tasks
from fedtune.studies.ray_tasks import RunTask
from fedtune.tuning import plan, space_facts
from fedtune.tuning import space as spaces
from fedtune.tuning.space_types import Config, Space, grid_values, require_points

SIMULATE = "fedtune.analysis.simulate"  # the module that searches the table


def run(options: TabulationOptions, output: Path) -> int:
    """Train the missing runs, write the table, say where it is; the exit status."""
    if not options.space:
        raise UserError(
            "--space, the grid of the table, is needed, but none was given; docs/background/simulate.md has one"
        )
    ray_start.require_cpus(options.cpus_per_trial, options.address)
    workload = options.workload()
    if (every := workload.traits.report_every) > 1:
        raise UserError(f"a table needs a figure of every round, but {workload.name} has report_every = {every}")
    if METRIC not in workload.measures.figures({}):
        raise UserError(f"a table holds {METRIC} of every round, but {workload.name} does not report it")
    space = spaces.load(options.space, workload)
    points = _points(space)
    grid = tabulated.read(Path(options.more_of)) if options.more_of else None
    levels = {} if grid else tabulated.of_points(points)
    if not RunFiles(options.folder).runs_folder.exists():
        plan.require_folder(options.folder.parent, options.folder.name, options.name)
    trains = workload.trainer
    data = trains.load(workload, options.data_dir, options.download)
    seeds = [workload.seed + i for i in range(options.seeds)]
    about = provenance.of_workload(workload) | {"scenario_name": options.scenario, "space": space.text()}
    if grid:
        _require_on(grid, points, workload)
        _note_machine(grid.about, about)
        seeds = [grid.seeds[-1], *(grid.seeds[-1] + 1 + i for i in range(options.seeds))]  # the first as a check
    trains.require(workload, data, seeds)
    trains.report(workload, data)
    shared = options.cpus_per_trial, options.gpus_per_trial
    log = RunFiles(options.folder).ray_log_file
    with ray_start.connected(options.address, *shared, options.dashboard, log=log):
        outcomes = _outcomes(options, workload, points, seeds, data)
    if grid:
        tabulated.write_list(output, _rows(outcomes, workload.rounds), about)
        tabulated.read_fresh(output).of(grid)
        size = f"{several(len(points), 'configuration')} on {several(options.seeds, 'fresh seed')}"
        say(f"{grid.name}: {size}: {output}")
        say(f"simulate: {command_line(options.more_of, '--against-itself', '--fresh', output, module=SIMULATE)}")
        return 0
    costs = _values(levels, seeds, outcomes, workload.rounds, tabulated.COST)
    table = tabulated.Tabulated(
        levels=levels,
        seeds=seeds,
        values=_values(levels, seeds, outcomes, workload.rounds),
        costs=None if np.isnan(costs).all() else costs,
        default=tabulated.nearest(levels, workload.configuration({})),
        about=about,
        first_effect=space_facts.first_effect(space, workload, within=workload.rounds)[0],
    )
    table.write(output)
    diverged = int(np.isnan(table.values[..., -1]).sum())
    size = f"{several(table.configurations, 'configuration')}, {several(len(seeds), 'seed')}"
    say(f"{table.name}: {size}, {several(table.rounds, 'round')}: {output}")
    if diverged:
        how = trial_states.loss_word(outcome.reason for *_, outcome in outcomes)
        say(f"note: {diverged} of {several(len(outcomes), 'run')} {how}")
    if table.repeated:
        say(
            f"note: {several(table.repeated, 'configuration')} had the same results as another in every round and on "
            "every seed; values without effect can be removed from the grid"
        )
    say(f"simulate: {command_line(output, module=SIMULATE)}")
    return 0


def _require_on(grid: tabulated.Tabulated, points: Sequence[Config], workload: Workload) -> None:
    """UserError unless configurations lie on a table's grid, and are trained as long."""
    for point in points:
        if point.keys() != grid.levels.keys() or any(v not in grid.levels[n] for n, v in point.items()):
            raise UserError(
                f"--more-of takes configurations of the table's grid, which varies {', '.join(grid.levels)}, but got "
                f"{point}; python -m fedtune.analysis.simulate --against-itself --chosen writes a list"
            )
    if workload.rounds != grid.rounds or workload.name != grid.about["algorithm"]:
        raise UserError(
            f"--more-of goes on with the table's {several(grid.rounds, 'round')} of {grid.about['algorithm']}, but got "
            f"{several(workload.rounds, 'round')} of {workload.name}"
        )


def _note_machine(table: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Say that this CPU rounds otherwise than that of the table, so that its seed may end otherwise here."""
    then, now = (provenance.trained_by(record).get("instructions") for record in (table, about))
    if then and now and then != now:
        say(
            f"note: the table was trained by a CPU with {then}, this one has {now} and rounds otherwise, so the seed "
            "that shows that both are one experiment may end otherwise; where this CPU has both, ATEN_CPU_CAPABILITY, "
            "ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS choose"
        )


def _rows(outcomes: Sequence[tuple[Config, int, ray_tasks.Outcome]], rounds: int) -> pd.DataFrame:
    """A row per configuration, seed and round; of one that diverged also its last, not a number."""
    rows = []
    for config, seed, outcome in outcomes:
        reached = [row[METRIC] for row in outcome.rounds]
        curve = [*enumerate(reached, 1), *([(rounds, math.nan)] if len(reached) < rounds else [])]
        rows += [config | {tabulated.SEED: seed, tabulated.ROUND: t, METRIC: value} for t, value in curve]
    return pd.DataFrame(rows)


def _points(space: Space) -> Sequence[Config]:
    """All points of a grid, or all combinations of a space of choices; UserError for a range."""
    if space.is_grid:
        return space.points
    require_points(1)
    values = {n: grid_values(n, d) for n, d in space.domains.items()}
    points: list[Config] = [{}]
    for name, of in values.items():
        require_points(len(points) * len(of))
        points = [p | {name: v} for p in points for v in of]
    return points


def _outcomes(
    options: TabulationOptions,
    workload: Workload,
    points: Sequence[Config],
    seeds: Sequence[int],
    data: Mapping[str, Any],
) -> list[tuple[Config, int, ray_tasks.Outcome]]:
    files = RunFiles(options.folder)
    files.path.mkdir(parents=True, exist_ok=True)
    labels = {f"{i:05d} seed {s}": (p, s) for i, p in enumerate(points) for s in seeds}
    runs = [RunTask(label, workload.with_seed(s), p) for label, (p, s) in labels.items()]
    size = f"{several(len(points), 'configuration')} on {several(len(seeds), 'seed')}"
    say(f"{size}.  After an interruption the same command continues")
    shared = options.cpus_per_trial, options.gpus_per_trial

    def interrupt(_: str) -> None:
        say(f"interrupted; finished runs are kept in {files.path}, and the same command continues")

    with files.lock(), interrupting.last_words(interrupt):
        outcomes = ray_tasks.run_all(runs, data, files.runs_folder, *shared, title="table")
    return [(*labels[label], outcome) for label, outcome in outcomes.items()]


def _values(
    levels: dict[str, list],
    seeds: Sequence[int],
    outcomes: Sequence[tuple[Config, int, ray_tasks.Outcome]],
    rounds: int,
    metric: str = METRIC,
) -> np.ndarray:
    """A metric by place on the grid, seed and round; not a number after a run diverged."""
    values = np.full((*map(len, levels.values()), len(seeds), rounds), np.nan)
    for config, seed, outcome in outcomes:
        place = (*(of.index(config[n]) for n, of in levels.items()), seeds.index(seed))
        reached = [row.get(metric, math.nan) for row in outcome.rounds]
        values[place][: len(reached)] = reached
    return values
