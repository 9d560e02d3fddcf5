"""python -m fedtune.reproduce: a paper's table or figure as a grid of runs, beside what the paper printed."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from rich.console import Console
from rich.table import Table

from fedtune import arguments
from fedtune.arguments import say
from fedtune.cluster import ray_start
from fedtune.core.errors import UserError, unknown
from fedtune.data import datasets, federation
from fedtune.federated.scenario import Scenario
from fedtune.runs import tables
from fedtune.studies import ray_tasks, reproduction, substitution
from fedtune.studies.paper_tables import GRIDS, Grid
from fedtune.studies.reproduction import Report, Spot
from fedtune.tuning import plan

RECORD = "reproduce.json"
GRID = ("table", "dataset", "parts", "quick", "all_columns", "rounds", "seeds", "preset")  # what decides which runs


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    p = arguments.Parser(
        prog="fedtune reproduce", description="Run a paper's table or figure, and show both side by side."
    )
    p.add_argument("table", nargs="?", metavar="TABLE", help="one of those that --list shows")
    p.add_argument("--list", action="store_true", help="show the tables and figures there are")
    p.add_argument("--dataset", metavar="NAME", help="only its columns of that, or that in the first one's place")
    p.add_argument("--parts", metavar="A,B,…", help="only these: a figure's letters, or a table's data sets")
    p.add_argument("--quick", action="store_true", help="a small true version: few rounds, seeds and columns")
    p.add_argument("--all-columns", action="store_true", help="with --quick: few rounds and seeds, but every column")
    p.add_argument("--rounds", type=arguments.positive, metavar="N", help="of the longest column; others in proportion")
    p.add_argument("--seeds", type=arguments.positive, metavar="N", help="runs of every figure (default: the paper's)")
    p.add_argument("--preset", metavar="NAME", help="as_text (the defaults) or as_published, where an algorithm has it")
    p.add_argument("--data-dir", metavar="DIR", help="torchvision's layout (default $FEDTUNE_DATA_DIR, data)")
    p.add_argument("--download", action="store_true", help="fetch the data sets if they are not there")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    m = p.add_argument_group("machine")
    m.add_argument("--cpus-per-trial", type=arguments.above_zero, default=1, metavar="N", help="of a run (default 1)")
    m.add_argument("--gpus-per-trial", type=_share, default=0, metavar="N", help="a fraction; default 0")
    m.add_argument("--name", help="of the folder (default: of the table, the data set and the version)")
    m.add_argument("--storage-path", default="runs", metavar="DIR", help="where that folder goes (default runs)")
    m.add_argument("--address", help="of a Ray cluster: auto, host:port or ray://host:port (default: start one here)")
    m.add_argument("--no-dashboard", action="store_true", help="do not start Ray's dashboard")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    console = arguments.console()
    if args.list or args.table is None:
        _list(console)
        return 0
    grid = wanted(args)
    device = "cuda" if args.gpus_per_trial else "cpu"
    spots = list(reproduction.planned(grid, args.preset or "as_text", device))
    asked = {name: getattr(args, name) for name in GRID}
    folder = _folder(args, asked)
    with ExitStack() as held:
        data = _load(spots, args)
        ray_start.start(args.address, args.cpus_per_trial, args.gpus_per_trial, not args.no_dashboard)
        held.callback(ray.shutdown)
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
    report.show(console)
    say(f"folder: {folder} (table.md, table.csv)")
    return 0


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
        federation.require_deals(data[scenario.dataset], scenario, sorted(of))
    return data


def _list(console: Console) -> None:
    """The tables and figures there are."""
    table = Table(title="fedtune reproduce TABLE", title_justify="left", box=None, padding=(0, 2))
    for column in ("table", "of", "what varies", "algorithms", "data sets", "runs"):
        table.add_column(column, overflow="fold", no_wrap=column == "table")
    for name, grid in GRIDS.items():
        rows = dict.fromkeys(r.algorithm for p in grid.panels for r in p.rows)
        data = dict.fromkeys(c.setting().dataset for p in grid.panels for c in p.columns)
        runs = grid.seeds * sum(len(p.rows) * len(p.columns) for p in grid.panels)
        table.add_row(name, f"{grid.paper}, {grid.table}", grid.varied, ", ".join(rows), ", ".join(data), str(runs))
    console.print(table)
    console.print("--quick: a small true version; --dataset fashion-mnist (or digits): where a data set is not there")


def _share(text: str) -> float:
    """The argument --gpus-per-trial: nothing, a fraction of a GPU, or whole ones."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < 1 or (math.isfinite(value) and value == int(value) and value > 0)):
        raise argparse.ArgumentTypeError(f"must be a fraction below 1 or a whole number, but got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
