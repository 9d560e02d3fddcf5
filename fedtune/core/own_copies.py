"""The content of a user's data on disk by its hash, and where copies of it lie."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_copies: dict[str, Path] = {}  # by their hash


def tell(sha256: str, copy: Path) -> None:
    """Where a copy of data lies, for when they are gone from their place."""
    _copies[sha256] = copy.absolute()


def find(sha256: str) -> Path | None:
    """A copy of data that this process was told of, if it is there."""
    copy = _copies.get(sha256)
    return copy if copy and copy.exists() else None


def digest(path: Path) -> str:
    """The hash of a file, or of a folder's files with their names; OSError if there is none."""
    inside = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return _digest_of(str(path), tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inside))


@lru_cache(maxsize=64)
def _digest_of(path: str, listing: tuple[tuple[str, int, int], ...]) -> str:
    """The same, read once for the same listing: names, sizes and times."""
    whole = hashlib.sha256()
    for name, *_ in listing:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if len(listing) == 1 and name == path:
            return digest.hexdigest()
        whole.update(f"{name.removeprefix(path)}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()
