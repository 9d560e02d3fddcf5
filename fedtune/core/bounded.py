"""Reading a file that somebody named: a regular one, and no larger than files of its kind may be.

A pipe waits for its writer, a device has no end, and a few bytes on disk can stand for terabytes: such files are
refused before they are read.  What is wrong is an `Unfit`, an OSError, so that it is told wherever a file that cannot
be read is.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

ANY = 2**30  # bytes of a file of which nothing better is known
PLAIN = 2**29  # bytes that any file may unpack to
RATIO = 500  # what has more than that may have so many times its bytes on the disk: what is measured packs less
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class Unfit(OSError):
    """A file that is not read; its strerror says why, after the file's name and a colon."""

    def __init__(self, path: str | Path, why: str) -> None:
        """why: what the file is."""
        super().__init__(errno.EINVAL, why, str(path))


def opened(path: str | Path, most: int = ANY) -> io.BufferedReader:
    """A file opened to be read; Unfit unless it is a regular one of at most so many bytes, or another OSError."""
    require(path, most)  # before it is opened, as to open a device may do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _require(path, os.fstat(file.fileno()), most)  # another may have come by that name
    except OSError:
        file.close()
        raise
    return file


def read(path: str | Path, most: int = ANY) -> bytes:
    """What a file holds; errors as of `opened`, also for one that grows meanwhile."""
    with opened(path, most) as file:
        expected = os.fstat(file.fileno()).st_size
        content = file.read(expected + 1)
        if len(content) > expected:  # it grows, or it is one of /proc, which says that it has nothing
            content += file.read(most + 1 - len(content))
    if len(content) > most:
        raise _large(path, most)
    return content


def require(path: str | Path, most: int = ANY) -> None:
    """Errors as of `opened`, without opening it: for what somebody else reads."""
    _require(path, os.stat(path), most)


def require_unpacked(path: str | Path, packed: int, unpacked: int, most: int) -> None:
    """Unfit for a file whose few bytes stand for more than files of its kind may hold, or than anything that is real.

    packed, unpacked: its bytes on disk and in memory, as far as it says so itself.
    """
    if unpacked > most:
        raise Unfit(path, f"it unpacks to {unpacked:,} bytes, more than the {most:,} that are read")
    if unpacked > max(PLAIN, RATIO * packed):
        raise Unfit(path, f"it unpacks to {unpacked:,} bytes, more than {RATIO} times what it has on the disk")


def _require(path: str | Path, status: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            raise Unfit(path, f"it is {kind}, and only regular files are read")
    if status.st_size > most:
        raise _large(path, most)


def _large(path: str | Path, most: int) -> Unfit:
    return Unfit(path, f"it has more than {most:,} bytes")
