"""Read a file that a user named, if it is a regular file and not too large for its kind.

A pipe waits for its writer, a device never ends, and a few bytes on disk can unpack to terabytes.  Such files are
refused before they are read.  The error is `Unfit`, an OSError, so that it is reported like any file that cannot be
read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

ANY = 2**30  # the largest file to read where no better limit is known, in bytes
ANY_UNPACKED = 2**29  # any file may unpack to this many bytes
RATIO = 500  # a larger one may unpack to this many times its size on disk; real measurements compress less
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class Unfit(OSError):
    """A file that is refused.  Its strerror says why, after the file's name and a colon."""

    def __init__(self, path: str | Path, reason: str) -> None:
        """why: what is wrong with the file."""
        super().__init__(errno.EINVAL, reason, str(path))


def opened(path: str | Path, limit: int = ANY) -> io.BufferedReader:
    """Open a file for reading; Unfit unless it is regular and at most this large, or another OSError."""
    require(path, limit)  # before opening: opening a device may have side effects
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _require(path, os.fstat(file.fileno()), limit)  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def read(path: str | Path, limit: int = ANY) -> bytes:
    """The content of a file; errors as in `opened`, also for a file that grows meanwhile."""
    with opened(path, limit) as file:
        expected = os.fstat(file.fileno()).st_size
        content = file.read(expected + 1)
        if len(content) > expected:  # it grows, or it is in /proc, where sizes are 0
            content += file.read(limit + 1 - len(content))
    if len(content) > limit:
        raise _large(path, limit)
    return content


def require(path: str | Path, limit: int = ANY) -> None:
    """Raise the errors of `opened` without opening the file, which other code will read."""
    _require(path, os.stat(path), limit)


def require_unpacked(path: str | Path, on_disk: int, unpacked: int, limit: int) -> None:
    """Raise Unfit for a file that unpacks to more than its kind may hold, or more than is plausible.

    packed, unpacked: its bytes on disk and in memory, as the file itself declares them.
    """
    if unpacked > limit:
        raise Unfit(path, f"it unpacks to {unpacked:,} bytes, more than the limit of {limit:,}")
    if unpacked > max(ANY_UNPACKED, RATIO * on_disk):
        raise Unfit(path, f"it unpacks to {unpacked:,} bytes, more than {RATIO} times its size on disk")


def _require(path: str | Path, status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            raise Unfit(path, f"it is {kind}; only regular files are read")
    if status.st_size > limit:
        raise _large(path, limit)


def _large(path: str | Path, limit: int) -> Unfit:
    return Unfit(path, f"it has more than {limit:,} bytes")
