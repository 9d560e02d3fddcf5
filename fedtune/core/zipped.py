"""Tell what kind of file a user gave by its first bytes, and how much data this machine may read."""

from __future__ import annotations

import zipfile
from pathlib import Path

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.memory import total_memory

BEGINNING = 2  # bytes that identify the type of a file
ZIP = b"PK"


def require(path: str | Path) -> None:
    """Raise UserError for a file that is no zip, or an OSError."""
    try:
        with bounded.opened(path, max_bytes()) as file, zipfile.ZipFile(file):
            pass
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} cannot be read as a zip: {error}") from error


def first_bytes(path: str | Path) -> bytes:
    """The first bytes of a file."""
    with bounded.opened(path, max_bytes()) as file:
        return file.read(BEGINNING)


def max_bytes() -> int:
    """The most bytes of data that are read: half of this machine's memory, as data are converted after reading."""
    return total_memory() // 2
