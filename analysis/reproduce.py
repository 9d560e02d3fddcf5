"""python -m fedtune.analysis.reproduce: a paper's table or figure as a grid of runs, next to the published figures."""

from __future__ import annotations

import argparse
import sys

from fedtune.analysis.reproduction.options import ReproductionOptions
from fedtune.core import terminal
from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments


def parser() -> argparse.ArgumentParser:
    """The arguments of a reproduction."""
    p = arguments.Parser(
        prog="python -m fedtune.analysis.reproduce",
        description="Run a paper's table or figure and show our results beside the printed ones.",
    )
    p.add_argument("table", nargs="?", metavar="TABLE", help="one of those that --list shows")
    p.add_argument("--list", action="store_true", help="list the tables and figures")
    arguments.add_options(p, ReproductionOptions)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.reproduce` and return its exit status."""
    args = parser().parse_args(argv)
    if args.list or args.table is None:
        _list()
        return 0
    options = ReproductionOptions(**arguments.given(args, ReproductionOptions))
    with quick_imports():
        from fedtune.analysis.reproduction import reproduction

    return reproduction.run(options)


def _list() -> None:
    from fedtune.analysis.reproduction.paper_tables import GRIDS
    from fedtune.analysis.reproduction.plan import rows_of

    columns, lines = ("table", "of", "what varies", "algorithms", "data sets", "runs"), []
    for name, grid in GRIDS.items():
        cells = [(r.algorithm, c.to_scenario().dataset) for p in grid.panels for c in p.columns for r in rows_of(p, c)]
        rows, data = (", ".join(dict.fromkeys(names)) for names in zip(*cells, strict=True))
        lines.append([name, f"{grid.paper}, {grid.table}", grid.varied, rows, data, str(grid.seeds * len(cells))])
    terminal.say_table("python -m fedtune.analysis.reproduce TABLE", columns, lines, columns[:-1])
    terminal.say("--quick: a small true version; --dataset fashion-mnist (or digits): where a data set is not there")


if __name__ == "__main__":
    sys.exit(main())
