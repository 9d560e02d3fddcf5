"""Which words name a program file."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedtune.core.errors import UserError

SUFFIX = ".toml"


def is_program(word: str) -> bool:
    """Whether what was given in place of an algorithm is a program file."""
    return word.endswith(SUFFIX)


def require_none(argv: Sequence[str] | None, command: str) -> None:
    """UserError for a program file among the words of a command that has no use for one; None: those of the process."""
    for word in sys.argv[1:] if argv is None else argv:
        if is_program(word):
            raise UserError(
                f"{command} is for what fedtune itself trains, but got {word}, a program file; programs go to "
                "fedtune search, compare and check"
            )
