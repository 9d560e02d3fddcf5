"""Check a zip archive by its directory and its arrays' headers, without unpacking anything."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.memory import total_memory

BEGINNING = 2  # bytes that identify the type of a file
ZIP = b"PK"


def require(path: str | Path) -> None:
    """Raise UserError for a file that is no zip, or an OSError."""
    with _directory(path, "a zip"):
        pass


def require_arrays(path: str | Path) -> None:
    """UserError for an .npz that is no zip, or has an array whose header does not match its size."""
    from numpy.lib import format as npy

    headers: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if first_bytes(path) == npy.MAGIC_PREFIX[:BEGINNING]:
        raise UserError(f"{path} holds a single array without a name; save arrays by name, as in np.savez(path, x=x)")
    with _directory(path, "an .npz") as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                read_header = headers.get(npy.read_magic(file))  # a later version is left to NumPy
                if read_header is None:
                    continue
                shape, _, dtype = read_header(file)
                declared, actual = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if not dtype.hasobject and declared != actual:
                raise ValueError(f"the header of {member.filename} says {declared:,} bytes, but it has {actual:,}")


def first_bytes(path: str | Path) -> bytes:
    """The first bytes of a file."""
    with bounded.opened(path, max_bytes()) as file:
        return file.read(BEGINNING)


def max_bytes() -> int:
    """The most bytes of data that are read: half of this machine's memory, as data are converted after reading."""
    return total_memory() // 2


@contextmanager
def _directory(path: str | Path, kind: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip and check its directory."""
    try:
        with bounded.opened(path, max_bytes()) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except OSError:
        raise
    except Exception as error:  # from the zip format, its compression, or NumPy's headers
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be read as {kind}: {reason}") from error
