"""fedtune extend RUN --trials +32, or --rounds +40: continue a finished search with more trials or rounds."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune extend`."""
    p = arguments.Parser(
        prog="fedtune extend",
        usage="%(prog)s RUN (--trials +N | --rounds +N) [options]",
        description="Give a finished search more trials or rounds.",
    )
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the finished search")
    more = p.add_mutually_exclusive_group(required=True)
    more.add_argument("--trials", type=arguments.positive_int, metavar="+N", help="run N more trials")
    more.add_argument(
        "--rounds", type=arguments.positive_int, metavar="+N", help="train the best trials for N more rounds"
    )
    p.add_argument(
        "--top",
        type=arguments.positive_int,
        metavar="N",
        help="with --rounds: how many trials go on (default: the best third)",
    )
    p.add_argument("--name", help="name of the new folder, beside the old one (default: RUN+N, RUN+Nrounds)")
    arguments.add_resumed(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune extend` and return its exit status."""
    args = parser().parse_args(argv)
    with quick_imports():
        from fedtune.studies import extending

    changed = arguments.given(args, SearchOptions, *arguments.OF_MACHINE)
    more = extending.More(args.trials, args.rounds, args.top)
    return extending.extend(args.run, more, args.name, changed, args.trust)
