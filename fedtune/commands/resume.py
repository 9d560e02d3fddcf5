"""fedtune resume RUN: goes on with a search that was interrupted, or gives a finished one more trials or rounds."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import command_line
from fedtune.tuning.options import arguments
from fedtune.tuning.options.search import SearchOptions


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune resume`."""
    p = arguments.Parser(
        prog="fedtune resume",
        description="Go on with an interrupted search or comparison, or give a finished search more.",
        examples=("fedtune resume runs/first", "fedtune resume runs/first --trials +32"),
    )
    p.add_argument("run", type=Path, metavar="RUN", help="the study's folder")
    more = p.add_mutually_exclusive_group()
    more.add_argument(
        "--trials", type=arguments.positive_int, metavar="+N", help="run N more trials of a finished search"
    )
    more.add_argument(
        "--rounds", type=arguments.positive_int, metavar="+N", help="train its best trials for N more rounds"
    )
    p.add_argument(
        "--top", type=arguments.positive_int, metavar="N", help="with --rounds: how many trials (default: a third)"
    )
    p.add_argument("--name", help="with --trials or --rounds: name of the new folder (default: RUN+N, RUN+Nrounds)")
    arguments.add_resumed(p)
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune resume` and return its exit status."""
    args = parser().parse_args(argv)
    if args.top and not args.rounds:
        raise UserError(f"--top says how many trials get more --rounds, but got --top {args.top} alone")
    if args.name and not (args.trials or args.rounds):
        raise UserError(f"--name is for the folder of more --trials or --rounds, but got --name {args.name} alone")
    changed = arguments.given(args, SearchOptions, *arguments.OF_MACHINE)
    again = [] if args.trials or args.rounds else [f"{command_line('resume', args.run)} continues it"]
    try:
        with quick_imports():
            from fedtune.studies import extending, resuming
        if args.trials:
            return extending.more_trials(args.run, args.trials, args.name, changed, args.trust)
        if args.rounds:
            return extending.more_rounds(args.run, args.rounds, args.top, args.name, changed, args.trust)
        return resuming.resume(args.run, changed, args.trust)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(*(error.args or again)) from None
