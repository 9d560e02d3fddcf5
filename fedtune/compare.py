"""python -m fedtune.compare: algorithms tuned alike on the same split, then told apart on fresh seeds."""

from __future__ import annotations

import sys

from fedtune import arguments
from fedtune.runs import tables
from fedtune.studies.comparison import conduct, make, parser

__all__ = ["main", "parser"]


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if argv is None else argv
    contest = make(words)
    return conduct(contest, {"arguments": words, "command": tables.command_line()})


if __name__ == "__main__":
    sys.exit(main())
