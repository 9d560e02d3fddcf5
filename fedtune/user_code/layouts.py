"""A user's data on disk: folders as other tools write them, their files, and a hash of their content."""

from __future__ import annotations

import errno
import hashlib
import mimetypes
import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedtune.core.errors import UserError

PFLLIB, LEAF, HUGGING_FACE, PARQUET = "PFLlib", "LEAF", "Hugging Face", "parquet"
POOLS = ("all_data", "rem_user_data", "sampled_data")  # LEAF's steps before it splits rows
SPLIT = ("train", "test")


class Layout(NamedTuple):
    """What a folder is, and the files that are read; files beside them, such as raw data, do not count."""

    kind: str
    files: tuple[Path, ...]


def of(folder: Path) -> Layout | None:
    """The layout of a folder; None if it is none of these, so perhaps a folder of pictures."""
    return _pfllib(folder) or _hugging_face(folder) or _leaf(folder) or _parquet(folder)


def _pfllib(folder: Path) -> Layout | None:
    """train/0.npz, test/0.npz, … and config.json."""
    files = [file for split in SPLIT for file in _flat(folder / split, ".npz")]
    config = folder / "config.json"
    return Layout(PFLLIB, (*files, *([config] if config.is_file() else []))) if files else None


def _leaf(folder: Path) -> Layout | None:
    """train/*.json and test/*.json, or all rows in all_data/*.json, or such files themselves."""
    for place in (folder, folder / "data"):
        if parts := [file for split in SPLIT for file in _flat(place / split, ".json")]:
            return Layout(LEAF, tuple(parts))
        pools = [files for name in POOLS if (files := _flat(place / name, ".json"))]
        if len(pools) > 1:
            raise UserError(f"{place} has rows in several folders of LEAF's; give one, such as {pools[0][0].parent}")
        if pools:
            return Layout(LEAF, pools[0])
    files = _flat(folder, ".json")
    return Layout(LEAF, files) if files else None


def leaf_files(path: Path) -> list[tuple[int, Path]]:
    """The split of each file of LEAF's, 0 train or 2 test; all 0 where rows are not split.

    UserError for one of train and test without the other.
    """
    layout = _leaf(path) if path.is_dir() else None
    parts = {file.parent.name for file in layout.files} & {*SPLIT} if layout else set()
    if len(parts) == 1:
        raise UserError(
            f"{path} has files only in {''.join(parts)}; make train and test, or give that folder, for rows that are "
            "split at random"
        )
    files = layout.files if layout else (path,)
    return [(2 * SPLIT.index(file.parent.name) if parts else 0, file) for file in files]


def _hugging_face(folder: Path) -> Layout | None:
    """What `save_to_disk` of the library datasets writes."""
    if not ((folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()):
        return None
    found = [f for f in folder.glob("*") if f.is_file()] + [f for f in folder.glob("*/*") if f.is_file()]
    return Layout(HUGGING_FACE, tuple(sorted(f for f in found if f.suffix in (".arrow", ".json"))))


def _parquet(folder: Path) -> Layout | None:
    files = [f for pattern in ("*.parquet", "*/*.parquet") for f in folder.glob(pattern) if f.is_file()]
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts)]
    if files and any((mimetypes.guess_type(f.name)[0] or "").startswith("image/") for f in folder.glob("*/*")):
        return None  # class folders with a table of what they hold
    return Layout(PARQUET, tuple(sorted(files))) if files else None


def _flat(folder: Path, ending: str) -> tuple[Path, ...]:
    """The files of a folder with this ending, if it has no folders, as one with classes of pictures has."""
    if not folder.is_dir():
        return ()
    inside = [f for f in folder.iterdir() if not f.name.startswith(".")]
    if any(f.is_dir() for f in inside):
        return ()
    return tuple(sorted(f for f in inside if f.suffix == ending))


def digest(path: Path) -> str:
    """The hash of a file, or of a folder's file names and contents; OSError if it does not exist or is not data."""
    inside = files_in(path) if path.is_dir() else [path]
    return _digest_of(str(path), tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inside))


def copied(data: Path, to: Path) -> dict[Path, Path]:
    """Each file of some data, and where it lies in a copy."""
    return {file: to / file.relative_to(data) for file in files_in(data)} if data.is_dir() else {data: to}


def files_in(folder: Path) -> list[Path]:
    """The files that make up a data set in a known layout, or else all files of a folder and its subfolders, sorted."""
    found = of(folder)
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
