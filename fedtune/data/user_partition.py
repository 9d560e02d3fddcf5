"""A user's own partition: FILE.npz with three arrays of one length, a row of the data set in each place.

    row      the number of a row of the data set: of an .npz or a function its place in x, of a folder the place among
             the pictures by class and name, of fedtune's own data sets with the official training rows first
    client   who holds it, 0 .. K - 1
    split    what for: 0, 1, 2 or train, val, test

Rows that are not named are nobody's.  No row is named twice, so the splits are disjoint and no two clients share one.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data import user_arrays
from fedtune.data.assignment import Partition, collect
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

NAMES = ("row", "client", "split")
KEY = "partition"  # of the description of a file


class _Named(NamedTuple):
    """Which row is whose and what for, int64 [rows named]."""

    row: np.ndarray
    client: np.ndarray
    split: np.ndarray


def is_own(name: str) -> bool:
    """Whether it is the canonical name of a partition whose description this process knows."""
    return user_files.is_own(name) and KEY in user_files.about(name)


def clients(name: str) -> int:
    """How many clients a user's partition has."""
    return int(user_files.about(name)[KEY]["clients"])


def described(name: str, files: tuple[UserFile, ...]) -> tuple[UserFile, ...]:
    """The files that an experiment was given, with the description of its partition, which is read and checked.

    name: of the partition, canonical.  UserError in one line for whatever is wrong with it.
    """
    file = next((f for f in files if f.name == name and f.content is None), None)
    if file is None or name.endswith("/"):
        raise UserError(
            f"a partition of your own is FILE.npz with arrays {', '.join(NAMES)}, but got {name}; write one with "
            "np.savez, or by fedtune partition --save"
        )
    found = _read(user_files.path_of(name), file.sha256)
    about = {KEY: {"clients": int(found.client.max()) + 1, "rows": len(found.row)}}
    files = tuple(f._replace(about={**f.about, **about}) if f is file else f for f in files)
    user_files.register(files)
    return files


def partition(name: str, rows: np.ndarray, whole: int) -> Partition:
    """The partition among these rows of a data set (ascending; places in them), of `whole` rows.

    Rows that are left out of `rows` (by skip_classes) are nobody's.  UserError for a row that does not exist.
    """
    path = user_files.path_of(name)
    found = _read(path, user_files.of_data(path).sha256)
    if found.row.max() >= whole:
        raise UserError(f"{path} names row {found.row.max()}, but the data set has rows 0 to {whole - 1}")
    kept = np.isin(found.row, rows)
    many = int(found.client.max()) + 1
    return collect(np.searchsorted(rows, found.row[kept]), found.client[kept], found.split[kept], many)


def write(path: Path, parts: Partition) -> None:
    """Write a partition as a file that can be given for one; the parts hold rows of the data set."""
    triples = [
        (rows, np.full(len(rows), k), np.full(len(rows), s))
        for s, split in enumerate(parts)
        for k, rows in enumerate(split)
    ]
    row, client, split = (np.concatenate(arrays) for arrays in zip(*triples, strict=True))
    with path.open("wb") as file:  # or NumPy adds an ending
        np.savez_compressed(file, row=row, client=client, split=split)


@lru_cache(maxsize=4)
def _read(path: Path, sha256: str) -> _Named:
    """Read and check a file, once for the same content."""
    arrays = user_arrays.read_npz(path, NAMES)
    for name in NAMES:
        if name not in arrays:
            raise UserError(f"{path} needs arrays {', '.join(NAMES)}, but has no {name}")
    if any(a.ndim != 1 for a in arrays.values()) or len(lengths := {*map(len, arrays.values())}) > 1 or 0 in lengths:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise UserError(f"{', '.join(NAMES)} of {path} must be of one length and not empty, but are of shapes {shapes}")
    row, client = (_numbers(path, name, arrays[name]) for name in NAMES[:2])
    split = user_arrays.splits(str(path), user_arrays.plain(str(path), "split", arrays["split"]))
    order = np.argsort(row, kind="stable")
    twice = np.flatnonzero(np.diff(row[order]) == 0)
    if len(twice):
        a, b = order[twice[0]], order[twice[0] + 1]
        both = " and ".join(f"client {client[i]} for {user_arrays.SPLITS[split[i]]}" for i in (a, b))
        raise UserError(f"{path} must name a row once, but gives row {row[a]} to {both}")
    numbers = np.unique(client)
    if len(numbers) != numbers[-1] + 1:
        missing = int((numbers != np.arange(len(numbers))).argmax())
        raise UserError(
            f"clients of {path} are numbered from 0 without a gap, but {missing} of 0 to {numbers[-1]} has no rows"
        )
    return _Named(row, client, split)


def _numbers(path: Path, name: str, values: Any) -> np.ndarray:
    array = user_arrays.plain(str(path), name, values)
    if array.dtype.kind not in "iu" or array.min() < 0:
        got = array.min() if array.dtype.kind in "iu" else f"of type {array.dtype}"
        way = "; give np.unique(client, return_inverse=True)[1], and names as the array owner of the data"
        way = way if name == "client" and array.dtype.kind == "U" else ""
        raise UserError(f"{name} of {path} must be whole numbers from 0 on, but is {got}{way}")
    return array.astype(np.int64)
