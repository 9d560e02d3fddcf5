"""A reproduction: the runs of a paper's table in a folder, and the table next to the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedtune.analysis.reproduction.options import ReproductionOptions
from fedtune.analysis.reproduction.paper_grid import PaperGrid
from fedtune.analysis.reproduction.plan import Spot, planned, requested, rows_of
from fedtune.analysis.reproduction.report import Report
from fedtune.cluster import ray_start
from fedtune.core import interrupting, terminal
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, near, say, several
from fedtune.data import datasets
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import built_in, fitting
from fedtune.experiment.scenario import FLAGS, Scenario
from fedtune.runs import provenance
from fedtune.runs.files import REPRODUCTION, RunFiles
from fedtune.studies import ray_tasks
from fedtune.tuning import plan
from fedtune.tuning.options.types import flag
from fedtune.user_code import user_errors


def run(options: ReproductionOptions) -> int:
    """Run what has not been run, write and show the table; the exit status."""
    options = _as_begun(options)
    grid, presets, folder = requested(options), options.presets, options.folder
    device = "cuda" if options.gpus_per_trial else "cpu"
    spots = list(planned(grid, presets, device, options.test_every, options.all_classes))
    with ExitStack() as stack:
        data = _load(spots, options)
        shared, log = (options.cpus_per_trial, options.gpus_per_trial), RunFiles(folder).ray_log_file
        fits = stack.enter_context(ray_start.connected(options.address, *shared, options.dashboard, log=log))
        folder.mkdir(parents=True, exist_ok=True)
        record = RunFiles(folder, REPRODUCTION)
        stack.enter_context(record.lock())
        record.add(**provenance.origin(), grid=options.grid, device=device, concurrent=fits)
        outcomes = _outcomes(grid, spots, data, folder, record, options)
        report = Report(
            grid=grid, spots=spots, outcomes=outcomes, origin=record.entries, presets=presets, quick=options.quick
        )
        report.write(folder)
        record.write("finished", runs=len(outcomes))
    report.show(terminal.console())
    say(f"folder: {near(folder)} (table.md, table.csv)")
    say(next_command(grid, options))
    return 0


def next_command(grid: PaperGrid, options: ReproductionOptions) -> str:
    """The next command: the whole table after a quick version; after that, a comparison with tuned algorithms."""
    if options.quick:
        full = replace(options, quick=False, all_columns=False, rounds=None, seeds=None, name=None)
        return f"whole: {command_line(full.table, *_words(full), module='fedtune.analysis.reproduce')}"
    panel = grid.panels[0]
    column = panel.columns[0]
    rows = {row.algorithm for row in rows_of(panel, column)}
    algos = ",".join(name for name in fitting(column.to_scenario()) if name in rows)
    words = ["--algos", algos, "--scenario", column.scenario]
    for n, v in column.fields.items():
        words += [flag(n), str(v)] if n in FLAGS else ["--set", f"{n}={v}"]
    words += _words(options, "data_dir", "address", "gpus_per_trial", "cpus_per_trial")
    return f"tuned: {command_line('compare', *words)}"


def _words(options: ReproductionOptions, *only: str) -> list[str]:
    """The arguments that give the options, or those of them that are named, where they are not as by default."""
    words: list[str] = []
    for f in fields(options):
        value = getattr(options, f.name)
        if value != f.default and f.name != "table" and (not only or f.name in only):
            words += [flag(f.name, f.default), *([] if isinstance(value, bool) else [str(value)])]
    return words


def _outcomes(
    grid: PaperGrid,
    spots: Sequence[Spot],
    data: dict[str, datasets.Dataset],
    folder: Path,
    record: RunFiles,
    options: ReproductionOptions,
) -> dict[str, ray_tasks.Outcome]:
    """The outcomes of the grid's runs, by label; the record says if they were interrupted."""
    runs = {run.label: run for spot in spots for run in spot.runs}
    record.write("running", runs=len(runs))
    say(f"{grid.paper}, {grid.table}: {several(len(runs), 'run')}.  After an interruption the same command continues")
    share, files = (options.cpus_per_trial, options.gpus_per_trial), RunFiles(folder).runs_folder

    def interrupt(why: str) -> None:
        record.write("interrupted", reason=why)
        say(f"interrupted; finished runs are kept in {near(folder)}, and the same command continues")

    try:
        with interrupting.last_words(interrupt):
            return ray_tasks.run_all(list(runs.values()), data, files, *share, title=options.table)
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        record.write(state, reason=f"{user_errors.kind(error)}: {user_errors.text(error)}")
        raise


def _as_begun(options: ReproductionOptions) -> ReproductionOptions:
    """The options for a new folder, or for one that was made for the same runs; UserError otherwise."""
    folder = options.folder
    if not RunFiles(folder, REPRODUCTION).record_file.exists():
        plan.require_folder(folder.parent, options.name or folder.name, options.name)
        return options
    begun = ReproductionOptions.from_record(read(folder))
    if begun.grid != options.grid:
        runs = ", ".join(f"{n} {begun.grid[n]}" for n, value in options.grid.items() if begun.grid.get(n) != value)
        raise UserError(f"a folder holds the runs of one table, but {folder} was made for {runs}; give another --name")
    return options


def read(folder: Path) -> dict[str, Any]:
    """The record of a reproduction in a folder; UserError if there is none."""
    files = RunFiles(folder, REPRODUCTION)
    record = files.record_with("grid", "device", "command")
    if not isinstance(record["grid"], dict) or "table" not in record["grid"]:
        raise files.damaged("it does not name the table")
    return record


def _load(spots: Sequence[Spot], options: ReproductionOptions) -> dict[str, datasets.Dataset]:
    """The data sets by name; UserError for one that is absent, or that cannot be partitioned as a scenario wants."""
    seeds: dict[Scenario, set[int]] = {}
    for one in (run for spot in spots for run in spot.runs):
        seeds.setdefault(built_in(one.workload, "a reproduction").scenario, set()).add(one.workload.seed)
    data = {}
    for name in dict.fromkeys(s.dataset for s in seeds):
        try:
            data[name] = datasets.load(name, options.data_dir, options.download)
        except UserError as error:
            raise UserError(f"{error}; or another data set in its place: --dataset fashion-mnist, digits") from error
    for scenario, of in seeds.items():
        partitioning.require_partitions(data[scenario.dataset], scenario, sorted(of))
    return data
