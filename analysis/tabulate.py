"""python -m fedtune.analysis.tabulate: every configuration of a grid, for a table that searches are simulated on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedtune.analysis.simulation.options import TabulationOptions
from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.user_code.command import require_new


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m fedtune.analysis.tabulate`."""
    p = arguments.Parser(
        prog="python -m fedtune.analysis.tabulate",
        usage="%(prog)s --algo NAME --space GRID.py [options]",
        description="Train every configuration of a grid on several seeds; fedtune.analysis.simulate searches it.",
    )
    arguments.add_options(p, TabulationOptions)
    p.add_argument("-o", "--output", type=Path, metavar="FILE.parquet", help="the table (default: beside its folder)")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `python -m fedtune.analysis.tabulate` and return its exit status."""
    args = parser().parse_args(argv)
    options = TabulationOptions(**arguments.given(args, TabulationOptions))
    output = args.output or options.folder.with_name(f"{options.folder.name}.parquet")
    if args.output or output.parent.exists():  # the folder that holds all runs' is made with the first
        require_new("--output", output, ".parquet")
    with quick_imports():
        from fedtune.analysis.simulation import tabulation

    return tabulation.run(options, output)


if __name__ == "__main__":
    sys.exit(main())
