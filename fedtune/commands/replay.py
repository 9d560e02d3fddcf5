"""fedtune replay RUN: trains every trial of a search again, as far as it went, and compares every number."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune replay`."""
    p = arguments.Parser(
        prog="fedtune replay",
        description="Train a search's trials again and compare every number.",
        examples=("fedtune replay runs/first", "fedtune replay runs/first --name twice --data-dir elsewhere"),
    )
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the search")
    p.add_argument("--name", help="name of the new folder, beside the old one (default: RUN-replayed)")
    arguments.add_resumed(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune replay` and return its exit status."""
    args = parser().parse_args(argv)
    with quick_imports():
        from fedtune.studies import replaying

    changed = arguments.given(args, SearchOptions, *arguments.OF_MACHINE)
    return replaying.replay(args.run, args.name, changed, args.trust)
