"""fedtune resume RUN: resumes a search whose driver died or was interrupted."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune resume`."""
    p = arguments.Parser(prog="fedtune resume", description="Resume a search whose driver died or was interrupted.")
    p.add_argument("run", type=Path, metavar="RUN", help="the study's folder")
    arguments.add_resumed(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune resume` and return its exit status."""
    args = parser().parse_args(argv)
    with quick_imports():
        from fedtune.studies import resuming

    return resuming.resume(args.run, arguments.given(args, SearchOptions, *arguments.OF_MACHINE), args.trust)
