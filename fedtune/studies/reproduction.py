"""A reproduction: the runs of a paper's table in a folder, and the table beside what the paper printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedtune.cluster import ray_start
from fedtune.core import terminal
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.federated import partitioning
from fedtune.federated.scenario import Scenario
from fedtune.runs import tables
from fedtune.studies import ray_tasks
from fedtune.studies.reproduction_plan import Spot, planned, wanted
from fedtune.studies.reproduction_report import Report
from fedtune.tuning import plan

RECORD = "reproduce.json"
GRID = ("table", "dataset", "parts", "quick", "all_columns", "rounds", "seeds", "preset")  # what decides which runs


def conduct(args: argparse.Namespace) -> int:
    """Run what has not been run, write and show the table; the exit status."""
    grid = wanted(args)
    device = "cuda" if args.gpus_per_trial else "cpu"
    spots = list(planned(grid, args.preset or "as_text", device))
    asked = {name: getattr(args, name) for name in GRID}
    folder = _folder(args, asked)
    with ExitStack() as held:
        data = _load(spots, args)
        held.enter_context(
            ray_start.connected(args.address, args.cpus_per_trial, args.gpus_per_trial, not args.no_dashboard)
        )
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(tables.sole_driver(folder))
        runs = {run.label: run for spot in spots for run in spot.runs}
        origin = tables.origin(tables.command_line())
        record = tables.Record(folder, origin | {"grid": asked, "device": device}, RECORD)
        record.write("running", runs=len(runs))
        say(f"{grid.paper}, {grid.table}: {len(runs)} runs.  If this is cut short, the same command goes on")
        try:
            outcomes = ray_tasks.play_all(
                list(runs.values()), data, folder / "runs", args.cpus_per_trial, args.gpus_per_trial, title=args.table
            )
        except BaseException as error:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            record.write(state, reason=f"{type(error).__name__}: {error}")
            raise
        report = Report(grid, spots, outcomes, record.content, args.preset or "as_text", args.quick)
        report.write(folder)
        record.write("finished", runs=len(runs))
    report.show(terminal.console())
    say(f"folder: {folder} (table.md, table.csv)")
    return 0


def folder_of(args: argparse.Namespace) -> Path:
    """Where the runs and the table go."""
    return Path(args.storage_path) / _name(args)


def _name(args: argparse.Namespace) -> str:
    given = [f"{n}{name}" for name in ("rounds", "seeds") if (n := getattr(args, name))]
    said = [args.table, args.dataset, args.parts and args.parts.replace(",", "+"), args.preset]
    kind = ["quick"] * args.quick + ["all-columns"] * args.all_columns
    return args.name or "-".join(filter(None, [*said, *kind, *given]))


def _folder(args: argparse.Namespace, grid: dict[str, Any]) -> Path:
    """The same: a new folder, or one that was made for the same runs; UserError otherwise."""
    folder = folder_of(args)
    if not (folder / RECORD).exists():
        plan.require_folder(Path(args.storage_path), _name(args))
    elif (had := record_of(folder)["grid"]) != grid:
        said = ", ".join(f"{n} {had[n]}" for n in GRID if had.get(n) != grid[n])
        raise UserError(f"a folder is of one table's runs, but {folder} was made for {said}; give another --name")
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    """What was written down of runs in a folder; UserError if it is none of `fedtune reproduce`."""
    try:
        record = dict(json.loads((folder / RECORD).read_text()))
        record["grid"]["table"], record["device"], record["command"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"a FOLDER must be of fedtune reproduce, but {folder} has no fit {RECORD}: {error}") from error
    return record


def _load(spots: Sequence[Spot], args: argparse.Namespace) -> dict[str, datasets.Dataset]:
    """The data sets, by name; UserError for one that is not there, or that cannot be dealt out as a setting wants."""
    seeds: dict[Scenario, set[int]] = {}
    for run in (run for spot in spots for run in spot.runs):
        seeds.setdefault(run.experiment.scenario, set()).add(run.experiment.seed)
    names = dict.fromkeys(s.dataset for s in seeds)
    data = {}
    for name in names:
        try:
            data[name] = datasets.load(name, args.data_dir, args.download)
        except UserError as error:
            raise UserError(f"{error}; or another data set in its place: --dataset fashion-mnist, digits") from error
    for scenario, of in seeds.items():
        partitioning.require_partitions(data[scenario.dataset], scenario, sorted(of))
    return data
