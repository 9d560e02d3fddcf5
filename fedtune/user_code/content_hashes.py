"""Identify a user's data on disk by a hash of its content, and find copies of it."""

from __future__ import annotations

import errno
import hashlib
import os
from functools import lru_cache
from pathlib import Path

from fedtune.user_code import layouts

_copies: dict[str, Path] = {}  # by hash


def register(sha256: str, copy: Path) -> None:
    """Remember a copy of some data, for when the original is gone."""
    _copies[sha256] = copy.absolute()


def find(sha256: str) -> Path | None:
    """The registered copy of some data, if it exists."""
    copy = _copies.get(sha256)
    return copy if copy and copy.exists() else None


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

    OSError for a link to a folder that contains it, for a name that is not UTF-8, and for a broken link that is not
    hidden.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        for link in (here / name for name in folders if os.path.islink(here / name)):
            if _leads_back(link):
                raise OSError(errno.EINVAL, "it is a link to a folder that contains it", str(link))
        for name in (*folders, *names):
            if os.fsencode(name) != name.encode(errors="replace"):
                raise OSError(errno.EINVAL, "its name is not valid UTF-8", ascii(os.path.join(place, name)))
        for file in map(here.joinpath, names):
            if file.is_file():
                found.append(file)
            elif not file.name.startswith("."):
                file.stat()
    return sorted(found)


def _leads_back(link: Path) -> bool:
    """Whether a link points to a folder that contains it, directly or through other links."""
    there = link.resolve()
    return any(there in (above.resolve(), *above.resolve().parents) for above in link.parents)


@lru_cache(maxsize=64)
def _digest_of(path: str, listing: tuple[tuple[str, int, int], ...]) -> str:
    """The hash of these files, cached by the listing of names, sizes and times."""
    whole = hashlib.sha256()
    for name, *_ in listing:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if len(listing) == 1 and name == path:
            return digest.hexdigest()
        whole.update(f"{name.removeprefix(path)}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()
