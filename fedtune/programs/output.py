"""What a program prints: cut into lines, kept in a file that does not grow, and told to people."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedtune.core.terminal import printable

KEPT = 2**20  # bytes of output that its file holds at most
LINE = 2**16  # bytes of a line that are looked at
SHOWN = 200  # characters of a line that a message shows
LAST = 20  # lines that a message shows
TAIL = 64 * 1024  # bytes that the last lines are looked for in
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00\x07\x08]")
DROPPED = b"[earlier output was dropped]\n"


class LineCutter:
    """Cuts output into lines as it comes.  A carriage return ends a line too, as progress bars write it."""

    def __init__(self) -> None:
        """Begin with a new line."""
        self._rest = b""  # of a line that has not ended
        self._skips = False  # the line that has not ended is longer than LINE: the rest of it is not looked at

    def take(self, content: bytes) -> Iterator[str]:
        """The lines that this content ends."""
        parts = (self._rest + content).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()
        for part in parts:
            skipped, self._skips = self._skips, False
            if part and not skipped:
                yield clean(part)
        if len(self._rest) > LINE:
            if not self._skips:
                yield _whole_words(self._rest)
            self._rest, self._skips = b"", True

    def end(self) -> Iterator[str]:
        """The line that the end of the output ends."""
        if self._rest and not self._skips:
            yield clean(self._rest)
        self._rest = b""


def clean(line: bytes) -> str:
    """A line as text, without what moves a terminal's cursor or sets its colours."""
    text = line.decode(errors="replace")
    return text if text.isprintable() else ANSI.sub("", text)


def _whole_words(line: bytes) -> str:
    """The beginning of a line that is too long, without its last word: it may be cut, and a number cut is another."""
    return clean(line).rpartition(" ")[0]


class Log:
    """The file with a program's last output; it holds at most KEPT bytes."""

    def __init__(self, path: Path) -> None:
        """Begin the file anew."""
        self._file = open(path, "w+b", buffering=0)
        self._size = 0

    def write(self, content: bytes) -> None:
        """Add output; most of what was there is dropped when the file is full."""
        content = content[-KEPT // 2 :]
        with suppress(OSError, ValueError):  # the disk is full: the program need not wait for it; or another log began
            if self._size + len(content) > KEPT:
                self._begin_again()
            self._size += self._file.write(content)

    def _begin_again(self) -> None:
        self._file.seek(max(0, self._size - KEPT // 4))
        kept = DROPPED + self._file.read().partition(b"\n")[2]
        self._file.seek(0)
        self._file.truncate()
        self._size = self._file.write(kept)

    def close(self) -> None:
        """No more output."""
        self._file.close()


def last_lines(path: Path, most: int = LAST) -> list[str]:
    """The last lines of a program's output that are not empty, fit to be shown."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            content = file.read()
    except OSError:
        return []
    lines = (shown(clean(part)) for part in content.replace(b"\r", b"\n").split(b"\n"))
    return [line for line in lines if line][-most:]


def last_line(path: Path) -> str:
    """The last line of a program's output, for people who watch; "" if there is none."""
    return next(iter(last_lines(path, 1)), "")


def shown(line: str) -> str:
    """A line for a message: printable, and shortened if it is long."""
    text = printable(line.rstrip())
    return text if len(text) <= SHOWN else f"{text[: SHOWN * 3 // 4]}…{text[-SHOWN // 8 :]}"
