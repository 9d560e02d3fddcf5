"""Identify a user's data on disk by a hash of its content."""

from __future__ import annotations

import errno
import hashlib
import os
from functools import lru_cache
from pathlib import Path

from fedtune.user_code import layouts


def digest(path: Path) -> str:
    """The hash of a file, or of a folder's file names and contents; OSError if it does not exist or is not data."""
    inside = files_in(path) if path.is_dir() else [path]
    return _digest_of(str(path), tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inside))


def copied(data: Path, to: Path) -> dict[Path, Path]:
    """Each file of some data, and where it lies in a copy."""
    return {file: to / file.relative_to(data) for file in files_in(data)} if data.is_dir() else {data: to}


def files_in(folder: Path) -> list[Path]:
    """The files that make up a data set in a known layout, or else all files of a folder and its subfolders, sorted."""
    found = layouts.of(folder)
    return list(found.files) if found else _everything(folder)


def _everything(folder: Path) -> list[Path]:
    """All files of a folder and its subfolders, sorted; links are followed.

    OSError for a link to a folder that contains it, and for a broken link that is not hidden.
    """
    found: list[Path] = []
    for place, _, names in os.walk(folder, followlinks=True):
        if any(os.path.samefile(place, above) for above in Path(place).parents):
            raise OSError(errno.EINVAL, "it is a link to a folder that contains it", place)
        for file in map(Path(place).joinpath, names):
            if file.is_file():
                found.append(file)
            elif not file.name.startswith("."):
                file.stat()
    return sorted(found)


@lru_cache(maxsize=64)
def _digest_of(path: str, listing: tuple[tuple[str, int, int], ...]) -> str:
    """The hash of these files, cached by the listing of names, sizes and times."""
    whole = hashlib.sha256()
    for name, *_ in listing:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if len(listing) == 1 and name == path:
            return digest.hexdigest()
        whole.update(os.fsencode(f"{name.removeprefix(path)}\0{digest.hexdigest()}\n"))
    return whole.hexdigest()
