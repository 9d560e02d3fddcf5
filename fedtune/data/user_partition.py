"""A user's own partition: FILE.npz with three arrays of equal length, one entry per row of the data set.

    row      the number of the row: for an .npz or a function its place in x; for a folder its place among the
             pictures sorted by class and name; for built-in data sets with the official training rows first
    client   the client that holds it, 0 .. K - 1
    split    its split: 0, 1, 2 or train, val, test

Rows that are not listed belong to no client.  No row is listed twice, so splits are disjoint and clients share no row.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedtune.core.errors import UserError
from fedtune.data import user_arrays
from fedtune.data.assignment import Partition, collect
from fedtune.data.dataset import SPLITS
from fedtune.data.plain import plain
from fedtune.data.user_metadata import PARTITION
from fedtune.user_code import user_files
from fedtune.user_code.user_files import UserFile

NAMES = ("row", "client", "split")


def described(name: str, files: tuple[UserFile, ...]) -> tuple[UserFile, ...]:
    """Read and check an experiment's partition file, and return its files with the partition's metadata.

    name: the partition's canonical name.  UserError in one line if anything is wrong with it.
    """
    file = next((f for f in files if f.name == name and f.content is None), None)
    if file is None or name.endswith("/"):
        raise UserError(
            f"your own partition must be FILE.npz with arrays {', '.join(NAMES)}, but got {name}; write one with "
            "np.savez or fedtune partition --save"
        )
    row, client, _ = _read(user_files.path_of(name), file.sha256)
    about = {PARTITION: {"clients": int(client.max()) + 1, "rows": len(row)}}
    files = tuple(f._replace(about={**f.about, **about}) if f is file else f for f in files)
    user_files.register(files)
    return files


def partition(name: str, rows: np.ndarray, total: int) -> Partition:
    """The partition as places in `rows` (ascending rows of a data set that has `total` rows).

    Rows missing from `rows` (because of skip_classes) belong to no client.  UserError for a row that does not exist.
    """
    path = user_files.path_of(name)
    row, client, split = _read(path, user_files.of_data(path).sha256)
    if row.max() >= total:
        raise UserError(f"{path} lists row {row.max()}, but the data set has rows 0 to {total - 1}")
    used = np.isin(row, rows)
    return collect(np.searchsorted(rows, row[used]), client[used], split[used], int(client.max()) + 1)


def write(path: Path, parts: Partition) -> None:
    """Write a partition as a file that --partition accepts; the parts hold row numbers of the data set."""
    triples = [
        (rows, np.full(len(rows), k), np.full(len(rows), s))
        for s, split in enumerate(parts)
        for k, rows in enumerate(split)
    ]
    row, client, split = (np.concatenate(arrays) for arrays in zip(*triples, strict=True))
    with path.open("wb") as file:  # opened here, or NumPy would append .npz
        np.savez_compressed(file, row=row, client=client, split=split)


@lru_cache(maxsize=4)
def _read(path: Path, sha256: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, client and split of a file, int64 [rows listed], checked and read once for the same content."""
    arrays = user_arrays.read_npz(path, NAMES)
    shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
    if {*arrays} != {*NAMES} or len({a.shape for a in arrays.values()}) > 1 or arrays["row"].ndim != 1:
        raise UserError(f"{path} needs arrays {', '.join(NAMES)} of one axis and the same length, but has {shapes}")
    for name in NAMES[:2]:
        values = arrays[name]
        if values.dtype.kind not in "iu" or not values.size or values.min() < 0:
            actual = values.min() if values.dtype.kind in "iu" and values.size else f"{values.size} of {values.dtype}"
            raise UserError(
                f"{name} of {path} must be whole numbers from 0 on, but is {actual}; of names give "
                "np.unique(client, return_inverse=True)[1], and the names as the data's array owner"
            )
    row, client = (arrays[name].astype(np.int64) for name in NAMES[:2])
    split = user_arrays.splits(str(path), plain(str(path), "split", arrays["split"]))
    order = np.argsort(row, kind="stable")
    if len(repeated := np.flatnonzero(np.diff(row[order]) == 0)):
        a, b = order[repeated[0]], order[repeated[0] + 1]
        places = " and ".join(f"client {client[i]} for {SPLITS[split[i]]}" for i in (a, b))
        raise UserError(f"{path} must list a row only once, but gives row {row[a]} to {places}")
    numbers = np.unique(client)
    if len(numbers) != numbers[-1] + 1:
        gap = int((numbers != np.arange(len(numbers))).argmax())
        raise UserError(
            f"clients of {path} must be numbered from 0 without gaps, but {gap} of 0 to {numbers[-1]} has no rows"
        )
    return row, client, split
