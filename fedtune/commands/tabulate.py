"""fedtune tabulate: every configuration of a grid, for a table that searches are simulated on."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.studies.options import TabulationOptions
from fedtune.tuning.options import arguments


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune tabulate`."""
    p = arguments.Parser(
        prog="fedtune tabulate",
        description="Train every configuration of a grid on several seeds; fedtune simulate searches the table.",
    )
    arguments.add_options(p, TabulationOptions)
    p.add_argument("-o", "--output", type=Path, metavar="FILE.parquet", help="the table (default: beside its folder)")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune tabulate` and return its exit status."""
    args = parser().parse_args(argv)
    options = TabulationOptions(**arguments.given(args, TabulationOptions))
    output = args.output or options.folder.with_name(f"{options.folder.name}.parquet")
    there = args.output is None or output.absolute().parent.is_dir()
    if output.suffix != ".parquet" or output.exists() or not there:
        raise UserError(f"--output needs a new file *.parquet in a folder that exists, but got {output}; give another")
    with quick_imports():
        from fedtune.studies.simulation import tabulation

    return tabulation.run(options, output)
