"""fedtune status RUN: the state of a search, comparison or reproduction, from its folder alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedtune.core import terminal
from fedtune.tuning.options import arguments

if TYPE_CHECKING:
    from rich.console import Group

    from fedtune.runs.overview import Status


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune status`."""
    p = arguments.Parser(
        prog="fedtune status",
        description="Show the progress of a search, a comparison or a reproduction.",
        examples=("fedtune status runs/first", "watch -n 10 fedtune status runs/first"),
    )
    p.add_argument("run", type=Path, metavar="RUN", help="the study's folder")
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune status` and return its exit status."""
    args = parser().parse_args(argv)
    from fedtune.runs.overview import Reader

    terminal.console().print(shown(Reader().read(args.run)))
    return 0


def shown(status: Status, name: str = "") -> Group:
    """A run's status for the terminal: what there is to say, then each search, or the table of the best trials.

    name: what one of a comparison's searches is.
    """
    from rich.console import Group

    from fedtune.runs.overview import BudgetStudyStatus, ComparisonStatus, SearchStatus

    whose = f"{name}: " if name else ""
    lines = "\n" * bool(name) + whose + "\n".join(status.lines)
    if isinstance(status, BudgetStudyStatus):  # only those that go on in full
        each = [f"{level.run.name}: {level.state}; {level.counted}" for level in status.levels]
        on = [shown(level, level.run.name) for level in status.levels if level.state == "running"]
        return Group(lines, *each, *on)
    if isinstance(status, ComparisonStatus):
        return Group(lines, *map(shown, status.searches, status.called))
    if not isinstance(status, SearchStatus):
        return Group(lines)
    if status.best is None:
        return Group(lines, "no round was reported yet")
    best = status.best
    words = best.columns[:2]
    return Group(lines, terminal.AnyWidth(columns=best.columns, rows=best.rows, words=words, title=best.title))
