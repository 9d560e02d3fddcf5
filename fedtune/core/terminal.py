"""How the commands speak: lines for the person at the terminal, the width of tables, the writing of values."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def say(line: str) -> None:
    """Print a line: results on stdout, notes and warnings on stderr."""
    print(line, file=sys.stderr if line.startswith(("note", "warning", "final")) else sys.stdout, flush=True)


@contextmanager
def silent() -> Iterator[None]:
    """Discard whatever is printed in the `with` block."""
    with redirect_stdout(None), redirect_stderr(None):
        yield


def console() -> Console:
    """Where tables are printed: as wide as the terminal, as $COLUMNS says, or else wide enough for most."""
    from rich.console import Console

    return Console(width=shutil.get_terminal_size((160, 50)).columns)


def short(value: Any) -> str:
    """A hyperparameter's value as tables show it: four digits of a float, nothing for None."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
