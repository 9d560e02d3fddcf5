"""python -m fedtune.reproduce: a paper's table or figure as a grid of runs, beside what the paper printed."""

from __future__ import annotations

import argparse
import math
import sys

from rich.console import Console
from rich.table import Table

from fedtune import arguments
from fedtune.core import terminal
from fedtune.studies import reproduction, reproduction_plan
from fedtune.studies.paper_tables import GRIDS


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
    p.add_argument(
        "--preset", metavar="A[,B]", help="as_text (the defaults), as_published, or both: a row for each that there is"
    )
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
    if args.list or args.table is None:
        _list(terminal.console())
        return 0
    return reproduction.conduct(args)


def _list(console: Console) -> None:
    """The tables and figures there are."""
    table = Table(title="fedtune reproduce TABLE", title_justify="left", box=None, padding=(0, 2))
    for column in ("table", "of", "what varies", "algorithms", "data sets", "runs"):
        table.add_column(column, overflow="fold", no_wrap=column == "table")
    for name, grid in GRIDS.items():
        cells = [(r.algorithm, c.setting().dataset)
                 for p in grid.panels for c in p.columns for r in reproduction_plan.rows_of(p, c)]  # fmt: skip
        rows, data = (", ".join(dict.fromkeys(names)) for names in zip(*cells, strict=True))
        table.add_row(name, f"{grid.paper}, {grid.table}", grid.varied, rows, data, str(grid.seeds * len(cells)))
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
