"""What a zip says that it holds, by its directory and the headers of arrays: nothing is unpacked."""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.memory import there_is

DIRECTORY = 2**22  # bytes of a zip's directory, which has some 100 for each member
BEGINNING = 2  # bytes that tell of what kind a file is
ZIP = b"PK"


def require(path: str | Path) -> None:
    """Unfit for a zip that unpacks to more than is read, another OSError, or UserError for what is none."""
    with _directory(path, "a zip"):
        pass


def require_arrays(path: str | Path) -> None:
    """The same for an .npz; UserError also for an array that is said to have other bytes than it has."""
    from numpy.lib import format as npy

    headers: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if begins(path) == npy.MAGIC_PREFIX[:BEGINNING]:
        raise UserError(f"{path} holds one array without a name; save arrays by name, as np.savez(path, x=x)")
    with _directory(path, "an .npz") as packed:
        for member in packed.infolist():
            with packed.open(member) as file:
                read = headers.get(npy.read_magic(file))  # of a later version NumPy itself is asked
                if read is None:
                    continue
                shape, _, dtype = read(file)
                says, has = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
            if not dtype.hasobject and says != has:
                raise ValueError(f"{member.filename} says that it has {says:,} bytes, but it has {has:,}")


def begins(path: str | Path) -> bytes:
    """A file's first bytes."""
    with bounded.opened(path, most()) as file:
        return file.read(BEGINNING)


def most() -> int:
    """Bytes of data that are read: half the memory of this machine, as they are converted on the way."""
    return there_is() // 2


@contextmanager
def _directory(path: str | Path, kind: str) -> Iterator[zipfile.ZipFile]:
    """A zip as it is looked over."""
    try:
        with _Cautious(bounded.opened(path, most()).detach()) as file, zipfile.ZipFile(file) as packed:
            unpacked = sum(member.file_size for member in packed.infolist())
            bounded.require_unpacked(path, os.fstat(file.fileno()).st_size, unpacked, most())
            yield packed
    except OSError:
        raise
    except Exception as error:  # of zips, of what packs them, and of NumPy's headers
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be read as {kind}: {reason}") from error


class _Cautious(io.BufferedReader):
    """A file of which no more is read at once than a zip's directory may have."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = DIRECTORY
        if size > DIRECTORY:
            raise zipfile.BadZipFile(f"its directory has more than {DIRECTORY:,} bytes")
        return super().read(size)
