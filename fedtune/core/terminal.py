"""How commands write to the terminal: messages, the width of tables, the formatting of values."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.progress import Progress
    from rich.table import Table

CELL = "JPY_PARENT_PID"  # set in the environment of processes that a notebook's cell starts
WORD = 250  # characters of a path or a name that a message shows in full
LINE = 600  # characters of a message
ASCII = {"−": "-", "–": "-", "±": "+-", "…": "...", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "\u2002": " "}
PERIOD = 0.5  # seconds between two pictures
MAX_NAMES = 5  # names that a message lists at most


def replace_what_cannot_be_written() -> None:
    """Print ASCII for what the encoding of stdout or stderr lacks, as in a batch job without a UTF-8 locale."""
    codecs.register_error("fedtune-ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is another class
            stream.reconfigure(errors="fedtune-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Our own signs in ASCII, so that no number loses its minus; a question mark for any other character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def say(line: str) -> None:
    """Print a line: results on stdout, notes and warnings on stderr."""
    print(printable(line), file=sys.stderr if line.startswith(("note", "warning", "final")) else sys.stdout, flush=True)


@contextmanager
def silent() -> Iterator[None]:
    """Discard everything printed in the block."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):  # a library that is imported keeps the stream
        yield


def console(stderr: bool = False, width: int | None = None, **options: Any) -> Console:
    """A console for tables, as wide as the terminal or $COLUMNS, or else 160 columns.

    Text is shown literally: a class named [bold] is not mark-up, and no text can move the cursor.
    """
    from rich.console import Console
    from rich.text import Text

    class AsWritten(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    if not stderr and width is None:
        width = shutil.get_terminal_size((160, 50)).columns
    plainly: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}
    return AsWritten(stderr=stderr, width=width, **plainly, **options)


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel, whose cells show pictures and HTML."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def watched() -> bool:
    """Whether stderr is a terminal, in which a picture can be redrawn; the output of a notebook's `!` is not."""
    return sys.stderr.isatty() and CELL not in os.environ


class LivePicture:
    """A picture that is drawn again and again: in the notebook's cell that runs, or in the terminal, by a thread."""

    def __init__(self, draw: Callable[[], RenderableType]) -> None:
        """Nothing is shown yet."""
        self._draw, self._due = draw, 0.0
        self._cell: Any = None
        self._live: Live | None = None

    def __enter__(self) -> LivePicture:
        """Show it for the first time."""
        if in_notebook():
            from IPython.display import display

            self._cell = display(display_id=True)
            self.update()
        elif watched():
            from rich.live import Live

            self._live = Live(console=console(stderr=True), get_renderable=self._draw, refresh_per_second=1 / PERIOD)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture, where it can still be drawn."""
        self._due = 0.0
        with suppress(Exception):
            self.update()
            if self._live:
                self._live.stop()

    @property
    def shown(self) -> bool:
        """Whether there is a place for pictures."""
        return bool(self._cell or self._live)

    def update(self) -> None:
        """Draw it anew, where no thread does, if the last time is long ago."""
        if self._cell and time.monotonic() >= self._due:
            from IPython.display import HTML

            self._due = time.monotonic() + PERIOD
            page = console(width=160, record=True, file=io.StringIO())
            page.print(self._draw())
            self._cell.update(HTML(page.export_html(inline_styles=True, code_format="<pre>{code}</pre>")))


def progress(title: str) -> Progress:
    """A progress bar on stderr, if that is a terminal: how many are done, the time left, the task's description."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    whose = TextColumn(printable(title).replace("{", "{{").replace("}", "}}"), markup=False)
    latest = TextColumn("{task.description}", markup=False)
    columns = (whose, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), latest)
    return Progress(*columns, console=console(stderr=True), disable=not watched())


def say_table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[str]],
    left: Collection[str] = (),
    optional: Collection[str] = (),
) -> None:
    """Print a table, whose first column holds words, as do those in `left`; the others hold numbers.

    optional: the columns that a narrow terminal may lack.
    """
    names = list(columns)
    words = {*names[:1], *left}
    table = AnyWidth(columns=names, rows=list(rows), words=words, title=title, optional=optional, box=True)
    console().print(table)


@dataclass(frozen=True, kw_only=True)
class AnyWidth:
    """A table of which no number is cut: where it does not fit, without some columns, or with rows under each other."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str]  # the columns that hold words; the others hold numbers
    title: str = ""
    optional: Collection[str] = ()  # the columns that may be left out
    box: bool = False

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        """The table as this width can hold it."""
        shown, width = list(range(len(self.columns))), options.max_width
        spare = [i for i, column in enumerate(self.columns) if column in self.optional]
        while self._width(shown) > width and spare:
            shown.remove(spare.pop())
        if self._width(shown) <= width:
            yield self._table(shown, width)
            if left_out := len(self.columns) - len(shown):
                yield f"{several(left_out, 'column')} more in a wider terminal"
            return
        yield from filter(None, [self.title, *(line for row in self.rows for line in self._stacked(row, width))])

    def _least(self, i: int, whole: bool = False) -> int:
        """The characters of a column that must stay together.  whole: those of its widest cell and heading."""
        name, cells = self.columns[i], [str(row[i]) for row in self.rows]
        parts = [name, *cells] if whole else name.split() + (" ".join(cells).split() if name in self.words else cells)
        return max(map(len, parts), default=0)

    def _width(self, shown: Sequence[int], whole: bool = False) -> int:
        lines = 3 * len(shown) + 1 if self.box else 2 * len(shown)  # between columns
        return sum(self._least(i, whole) for i in shown) + lines

    def _table(self, shown: Sequence[int], width: int) -> Table:
        from rich.table import Table

        look: dict[str, Any] = {} if self.box else {"box": None, "pad_edge": False}
        table = Table(title=self.title or None, title_justify="left", **look)
        fits = self._width(shown, whole=True) <= width
        for i in shown:
            is_word = self.columns[i] in self.words
            fixed = None if fits or is_word else self._least(i)
            table.add_column(self.columns[i], justify="left" if is_word else "right", width=fixed)
        for row in self.rows:
            table.add_row(*(row[i] for i in shown))
        return table

    def _stacked(self, row: Sequence[str], width: int) -> Iterator[str]:
        line = str(row[0])
        for name, cell in zip(self.columns[1:], row[1:], strict=True):
            if cell and len(line) + len(name) + len(cell) + 3 > width:
                yield line
                line = ""
            line += f"  {name} {cell}" if cell else ""
        yield line


def shortened(names: Sequence[str], most: int = 12) -> list[str]:
    """Names cut in the middle to so many characters, or to as many more as tell them apart.

    >>> from fedtune.core.terminal import shortened
    >>> shortened(["optimizer.learning_rate", "optimizer.weight_decay", "lr"])
    ['optimi…_rate', 'optimi…decay', 'lr']
    """
    for keep in range(most, max(map(len, names), default=0)):
        cut = [n if len(n) <= keep else f"{n[: keep // 2]}…{n[keep // 2 + 1 - keep :]}" for n in names]
        if len({*cut}) == len({*names}):
            return cut
    return list(names)


def short(value: Any) -> str:
    """A hyperparameter's value for tables: four digits of a float, nothing for None."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else printable(str(value))


def several(number: int, thing: str) -> str:
    """A number with its noun: `1 round`, `12 rounds`, `3 classes`."""
    ending = "" if number == 1 else "es" if thing.endswith(("s", "ch")) else "s"
    return f"{number} {thing}{ending}"


def few(names: Sequence[str]) -> str:
    """The first of several names: `a, b, c, d, e, …`."""
    return ", ".join(names[:MAX_NAMES]) + ", …" * (len(names) > MAX_NAMES)


def one_line(text: object) -> str:
    """A text as one printable line; very long words and lines are shortened in the middle."""
    words = printable(" ".join(str(text).split())).split(" ")
    line = " ".join(w if len(w) <= WORD else f"{w[: WORD // 2]}…{w[-WORD // 4 :]}" for w in words)
    return line if len(line) <= LINE else f"{line[: LINE * 2 // 3]} … {line[-LINE // 4 :]}"


def near(path: Path) -> Path:
    """A path relative to the working directory if it lies inside, as a person would type it."""
    return path.relative_to(folder) if path.is_relative_to(folder := Path.cwd()) else path


def command_line(*words: object, module: str = "fedtune") -> str:
    """A fedtune command that works when pasted here, in its environment or not.  module: as in python -m."""
    typed = (str(near(word)) if isinstance(word, Path) else str(word) for word in words)
    program = [sys.executable, "-m", module]
    script = Path(sys.executable).with_name("fedtune")
    if script.exists() and module == "fedtune":
        on_path = shutil.which("fedtune")
        script_path = f"./{os.path.relpath(script)}" if script.is_relative_to(Path.cwd()) else str(script)
        is_active = on_path is not None and os.path.realpath(on_path) == os.path.realpath(script)
        program = ["fedtune" if is_active else script_path]
    return shlex.join([*program, *typed])


def printable(text: str) -> str:
    """A text without characters that move the cursor, set colours, reverse the direction or cannot be written."""
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() or c in "\n\t " else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)
