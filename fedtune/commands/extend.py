"""fedtune extend RUN --trials +32, or --rounds +40: a search that is over goes on from what it learnt."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.tuning.options import arguments
from fedtune.tuning.options.options import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune extend`."""
    p = arguments.Parser(prog="fedtune extend", description="More trials or rounds for a search that is over.")
    p.add_argument("run", type=Path, metavar="RUN", help="the folder of the search that is over")
    more = p.add_mutually_exclusive_group(required=True)
    more.add_argument("--trials", type=arguments.positive_int, metavar="+N", help="so many more trials")
    more.add_argument(
        "--rounds", type=arguments.positive_int, metavar="+N", help="so many more rounds for the best trials"
    )
    p.add_argument(
        "--top", type=arguments.positive_int, metavar="N", help="with --rounds: for how many (default: a third)"
    )
    p.add_argument("--name", help="of the new folder, beside the old one (default: RUN+N, RUN+Nrounds)")
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
