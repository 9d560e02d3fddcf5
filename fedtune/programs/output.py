"""What a program prints: cut into lines, kept in a file that does not grow, and told to people."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO

from fedtune.core.terminal import printable

KEPT = 2**20  # bytes of output that its file holds at most
SHOWN = 200  # characters of a line that a message shows
LAST = 20  # lines that a message shows
TAIL = 64 * 1024  # bytes that the last lines are looked for in
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00\x07\x08]")
DROPPED = b"[earlier output was dropped]\n"
TRACEBACK = "Traceback (most recent call last)"


def cut(content: bytes) -> tuple[list[str], bytes]:
    """The lines of some output, and the rest, which is no whole line yet; a carriage return ends one too."""
    *lines, rest = content.replace(b"\r", b"\n").split(b"\n")
    return [clean(line) for line in lines if line], rest


def clean(line: bytes) -> str:
    """A line as text, without what moves a terminal's cursor or sets its colours."""
    text = line.decode(errors="replace")
    return text if text.isprintable() else ANSI.sub("", text)


def keep(log: IO[bytes], content: bytes) -> None:
    """Add output to its file; most of what was there is dropped when the file is full."""
    content = content[-KEPT // 2 :]
    with suppress(OSError):  # the disk is full: the program need not wait for it
        if log.tell() + len(content) > KEPT:
            log.seek(-KEPT // 4, os.SEEK_END)
            kept = DROPPED + log.read().partition(b"\n")[2]
            log.seek(0)
            log.truncate()
            log.write(kept)
        log.write(content)


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


def traceback(path: Path) -> str:
    """The error of the last traceback of Python's that a program printed; "" if it printed none."""
    lines = last_lines(path, TAIL)
    begins = [i for i, line in enumerate(lines) if TRACEBACK in line]
    said = (line for line in lines[begins[-1] + 1 :] if not line.startswith(" ")) if begins else iter(())
    return next(said, "")


def shown(line: str) -> str:
    """A line for a message: printable, and shortened if it is long."""
    text = printable(line.rstrip())
    return text if len(text) <= SHOWN else f"{text[: SHOWN * 3 // 4]}…{text[-SHOWN // 8 :]}"
