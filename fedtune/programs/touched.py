"""The files that a program writes outside its trial's folder, and which of them it reads: by their times.

A file system keeps when a file was last read, unless it is mounted with `noatime`.  With `relatime`, which is usual,
the time is right for files that were written since they were read before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOST = 50_000  # files that are looked at
SHARED = ("__pycache__", ".lock", ".pyc")  # ends of names: what any number of processes may write at once
States = dict[Path, os.stat_result]


def folder(path: str, runs_in: str) -> Path:
    """Where a program can be expected to write: the git repository that it runs in, or else the program file's folder.

    Results often lie in `../results`.  A home folder is too much, and so is one that the program does not run below.
    """
    place, base = Path(runs_in).resolve(), Path(path).resolve().parent
    for above in (place, *place.parents):
        if above != Path.home() and (above / ".git").exists():
            return above
    if place != base and place.is_relative_to(base):
        return base / place.relative_to(base).parts[0]
    return place


def states(place: Path) -> States:
    """The files below a folder as they are now, without hidden folders."""
    found: States = {}
    for entry in _files(place):
        if len(found) == MOST:
            break
        with suppress(OSError):  # gone meanwhile
            found[Path(entry.path)] = entry.stat(follow_symlinks=False)
    return found


def _files(place: Path) -> Iterator[os.DirEntry[str]]:
    todo = [str(place)]
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo += [entry.path] * (not entry.name.startswith(".") and not entry.name.endswith(SHARED))
                elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(SHARED):
                    yield entry


def between(before: States, after: States) -> tuple[set[Path], set[Path]]:
    """The files that were written meanwhile, and those of them that may have been read too."""
    written = {path for path, now in after.items() if _what(before.get(path)) != _what(now)}
    return written, {path for path in written if _read(path, before.get(path), after[path])}


def _what(state: os.stat_result | None) -> tuple[int, int, int] | None:
    return state and (state.st_mtime_ns, state.st_size, state.st_ino)


def _read(path: Path, then: os.stat_result | None, now: os.stat_result) -> bool:
    with suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_NOATIME:
            return True
    if then and then.st_ino == now.st_ino:
        return then.st_atime_ns != now.st_atime_ns
    return now.st_atime_ns > now.st_mtime_ns  # a new one has been read since it was written
