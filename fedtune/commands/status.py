"""fedtune status RUN: the state of a search, comparison or reproduction, from its folder alone."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from fedtune.core import terminal
from fedtune.tuning.options import arguments


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune status`."""
    p = arguments.Parser(
        prog="fedtune status", description="Show the progress of a search, a comparison or a reproduction."
    )
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    p.add_argument(
        "--watch",
        type=arguments.above_zero,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="refresh (default: every 2 s)",
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune status` and return its exit status."""
    args = parser().parse_args(argv)
    from rich.live import Live

    from fedtune.runs.overview import overview

    console = terminal.console()
    shown, over = overview(args.run)
    if args.watch is None:
        console.print(shown)
        return 0
    with Live(shown, console=console, auto_refresh=False) as live:
        while not over:
            time.sleep(args.watch)
            shown, over = overview(args.run)
            live.update(shown, refresh=True)
    return 0
