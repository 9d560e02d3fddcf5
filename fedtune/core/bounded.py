"""Read a file that a user named, if it is not too large for its kind.

The error is `Unfit`, an OSError, so that it is reported like any file that cannot be read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

ANY = 2**30  # the largest file to read where no better limit is known, in bytes


class Unfit(OSError):
    """A file that is refused.  Its strerror says why, after the file's name and a colon."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """reason: what is wrong with the file."""
        super().__init__(errno.EINVAL, reason, str(path))


def opened(path: str | Path, limit: int = ANY) -> io.BufferedReader:
    """Open a file for reading; Unfit if it is larger than this, or another OSError."""
    require(path, limit)
    return open(path, "rb")


def read(path: str | Path, limit: int = ANY) -> bytes:
    """The content of a file; errors as in `opened`."""
    with opened(path, limit) as file:
        return file.read()


def require(path: str | Path, limit: int = ANY) -> None:
    """Raise the errors of `opened` without opening the file, which other code will read."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if status.st_size > limit:
        raise Unfit(path, f"it has more than {limit:,} bytes")
