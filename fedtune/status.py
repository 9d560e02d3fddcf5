"""python -m fedtune.status RUN: how a search stands, running or over, read from its folder alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedtune import arguments
from fedtune.core import terminal
from fedtune.core.errors import UserError


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune status` and return its exit status."""
    p = arguments.Parser(prog="fedtune status", description="How a search stands: best, trials, rungs, time left.")
    p.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    p.add_argument("--watch", type=float, nargs="?", const=2.0, metavar="SECONDS", help="refresh (default: every 2 s)")
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    args = p.parse_args(argv)
    if args.watch is not None and not args.watch > 0:
        raise UserError(f"--watch must be above 0 seconds, but got {args.watch:g}")
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


if __name__ == "__main__":
    sys.exit(main())
