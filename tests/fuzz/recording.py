"""What a folder holds before every change that this process's Python makes to it: what a dying disk leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def held(folder: Path) -> dict[str, bytes | None]:
    """The files of a folder with their bytes; None for a folder in it."""
    found: dict[str, bytes | None] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # it was moved meanwhile
            found[str(path.relative_to(folder))] = None if path.is_dir() else path.read_bytes()
    return found


def put(files: dict[str, bytes | None], folder: Path) -> None:
    """Write the files into a new folder."""
    folder.mkdir(parents=True)
    for path, content in sorted(files.items(), key=lambda item: item[0].count("/")):
        file = folder / path
        file.mkdir(exist_ok=True) if content is None else file.write_bytes(content)


@contextmanager
def before_each_change(folder: Path) -> Iterator[list[dict[str, bytes | None]]]:
    """What a folder holds before every file that this process opens to write to, moves or removes below it meanwhile.

    Whatever others write stands where it had come to.
    """
    found: list[dict[str, bytes | None]] = []
    root = str(folder)
    _hear(lambda path: found.append(held(folder)) if path.startswith(root) and folder.exists() else None)
    try:
        yield found
        found.append(held(folder))
    finally:
        _hear(None)


_heard: list[Callable[[str], None] | None] = []  # a hook of Python's cannot be taken back: it hears nothing then


def _hear(listener: Callable[[str], None] | None) -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir") or (event == "open" and args[2] & os.O_ACCMODE)
        if changes and (listener := _heard[0]):
            _heard[0] = None  # what it opens itself is only read, and this is not heard
            listener(os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else "")
            _heard[0] = listener

    if not _heard:
        _heard.append(None)
        sys.addaudithook(hook)
    _heard[0] = listener
