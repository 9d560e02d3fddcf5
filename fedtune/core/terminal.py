"""How the commands speak: lines for the person at the terminal, the width of tables, the writing of values."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

CELL = "JPY_PARENT_PID"  # in the environment of what a notebook's cell starts
WORD = 250  # letters of a path or a name that a message shows in full
LINE = 600  # letters of a message
FEW = 5  # of many names, those that a message has


def say(line: str) -> None:
    """Print a line: results on stdout, notes and warnings on stderr."""
    print(printable(line), file=sys.stderr if line.startswith(("note", "warning", "final")) else sys.stdout, flush=True)


@contextmanager
def silent() -> Iterator[None]:
    """Discard whatever is printed in the `with` block."""
    with redirect_stdout(None), redirect_stderr(None):
        yield


def console(stderr: bool = False, width: int | None = None, **more: Any) -> Console:
    """Where tables are printed: as wide as the terminal, as $COLUMNS says, or else wide enough for most.

    Every text is shown as it is written: a class named [bold] or :fire: is no mark-up, and no text moves the cursor.
    In a notebook it is text, too, in the cell's output or in the file that was given.
    """
    from rich.console import Console
    from rich.text import Text

    class AsWritten(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    if not stderr and width is None:
        width = shutil.get_terminal_size((160, 50)).columns
    plainly: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}
    return AsWritten(stderr=stderr, width=width, **plainly, **more)


def in_notebook() -> bool:
    """Whether this runs in the kernel of a notebook, whose cells show pictures and pages."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def watched() -> bool:
    """Whether stderr is a terminal, in which a picture can be drawn anew; the output of a notebook's `!` is none."""
    return sys.stderr.isatty() and CELL not in os.environ


def progress(title: str) -> Progress:
    """A bar on stderr: how many are done, what is left, and a task's description as the latest words.

    Without a terminal it is not shown.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    whose = TextColumn(printable(title).replace("{", "{{").replace("}", "}}"), markup=False)
    latest = TextColumn("{task.description}", markup=False)
    columns = (whose, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), latest)
    return Progress(*columns, console=console(stderr=True), disable=not watched())


def short(value: Any) -> str:
    """A hyperparameter's value as tables show it: four digits of a float, nothing for None."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else printable(str(value))


def several(number: int, thing: str) -> str:
    """So many of a thing: `1 round`, `12 rounds`, `3 classes`."""
    ending = "" if number == 1 else "es" if thing.endswith(("s", "ch")) else "s"
    return f"{number} {thing}{ending}"


def few(names: Sequence[str]) -> str:
    """The first of several names: `a, b, c, d, e, …`."""
    return ", ".join(names[:FEW]) + ", …" * (len(names) > FEW)


def one_line(text: object) -> str:
    """A text as one line that a terminal shows as it is; words and lines that are very long lose their middles."""
    words = printable(" ".join(str(text).split())).split(" ")
    line = " ".join(w if len(w) <= WORD else f"{w[: WORD // 2]}…{w[-WORD // 4 :]}" for w in words)
    return line if len(line) <= LINE else f"{line[: LINE * 2 // 3]} … {line[-LINE // 4 :]}"


def near(path: Path) -> Path:
    """A path as a person here would write it: from the working directory, where it leads into that."""
    return path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path


def command_line(*words: object) -> str:
    """A command of ours that works when it is pasted here, whether or not the environment is active."""
    typed = (str(near(word)) if isinstance(word, Path) else str(word) for word in words)
    program = [sys.executable, "-m", "fedtune"]
    script = Path(sys.executable).with_name("fedtune")
    if script.exists():
        found = shutil.which("fedtune")
        here = f"./{os.path.relpath(script)}" if script.is_relative_to(Path.cwd()) else str(script)
        active = found is not None and os.path.realpath(found) == os.path.realpath(script)
        program = ["fedtune" if active else here]
    return shlex.join([*program, *typed])


def printable(text: str) -> str:
    """A text without what would move a terminal's cursor, colour it, turn its direction or fail to be written."""
    if text.isprintable():
        return text
    fine = (c if c.isprintable() or c in "\n\t " else c.encode("unicode_escape").decode() for c in text)
    return "".join(fine)
