"""fedtune report RUN…: one page with the results of searches and comparisons, which needs only a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say
from fedtune.reporting import output
from fedtune.user_code.command import Parser, guarded


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune report`."""
    p = Parser(
        prog="fedtune report",
        description="Write the findings of searches and comparisons on one page.",
        examples=("fedtune report runs/first", "fedtune report runs/first runs/second -o both.html"),
    )
    p.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a search or a comparison")
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.html",
        help="where to write the page (default for one RUN: RUN/report.html)",
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune report` and return its exit status."""
    args = parser().parse_args(argv)
    out = output.place(args.runs, args.output)
    with quick_imports():
        from fedtune.reporting import page  # it loads pandas and plotly, which refusals above do without

    page.write(args.runs, out)
    say(f"report: {out} ({out.stat().st_size / 1e6:.1f} MB)")
    return 0
