"""The content of a user's data on disk by its hash, and where copies of it lie."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from functools import lru_cache
from pathlib import Path

from fedtune.core import bounded, zipped
from fedtune.core.bounded import Unfit

LARGEST = 2**28  # bytes of a picture
PROMISING = 10_000  # entries of a folder, one of which at least is a picture: a whole disk is no data set
ENTRIES = 10_000_000  # of a folder

_copies: dict[str, Path] = {}  # by their hash


def register(sha256: str, copy: Path) -> None:
    """Where a copy of data lies, for when they are gone from their place."""
    _copies[sha256] = copy.absolute()


def find(sha256: str) -> Path | None:
    """A copy of data that this process was told of, if it is there."""
    copy = _copies.get(sha256)
    return copy if copy and copy.exists() else None


def digest(path: Path) -> str:
    """The hash of a file, or of a folder's files with their names; OSError if there is none, or it is no data."""
    if path.is_dir():
        inside, most = files_in(path), LARGEST
    else:
        inside, most = [path], zipped.most()
    for file in inside:
        bounded.require(file, most)  # before the first is read
    return _digest_of(str(path), tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inside))


def files_in(folder: Path) -> list[Path]:  # noqa: C901
    """The files of a folder and of those in it, in order; links are followed.

    Unfit for a folder that holds what no data set does, for a link to a folder in which it lies, and for what is no
    file and not hidden: a device, or a link that leads nowhere.
    """
    found: list[Path] = []
    pictures, number = False, 0
    for place, folders, names in os.walk(folder, followlinks=True):
        here = Path(place)
        for link in (here / name for name in folders if os.path.islink(here / name)):
            if _leads_back(link):
                raise Unfit(link, "it is a link to a folder in which it lies")
        for name in (*folders, *names):
            if not name.isprintable() and os.fsencode(name) != name.encode(errors="replace"):
                raise Unfit(ascii(os.path.join(place, name)), "its name is no text in UTF-8")
        number += len(folders)
        for file in map(here.joinpath, names):
            number += 1
            if file.is_file():
                found.append(file)
                pictures = pictures or (mimetypes.guess_type(file.name)[0] or "").startswith("image/")
            elif not file.name.startswith("."):
                bounded.require(file)
            if number >= PROMISING and not pictures:
                raise Unfit(folder, f"none of its first {PROMISING:,} files is a picture")
            if number > ENTRIES:
                raise Unfit(folder, f"it has more than {ENTRIES:,} files")
    return sorted(found)


def _leads_back(link: Path) -> bool:
    """Whether a link leads to a folder on the way to it, by other links or not."""
    there = link.resolve()
    return any(there in (above.resolve(), *above.resolve().parents) for above in link.parents)


@lru_cache(maxsize=64)
def _digest_of(path: str, listing: tuple[tuple[str, int, int], ...]) -> str:
    """The same, read once for the same listing: names, sizes and times."""
    whole = hashlib.sha256()
    for name, *_ in listing:
        with bounded.opened(name, zipped.most()) as file:
            digest = hashlib.file_digest(file, "sha256")
        if len(listing) == 1 and name == path:
            return digest.hexdigest()
        whole.update(f"{name.removeprefix(path)}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()
