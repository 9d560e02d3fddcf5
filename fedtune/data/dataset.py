"""What a data set is once it is read."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

SPLITS = ("train", "val", "test")
CALLED = {"training": 0, "valid": 1, "validation": 1, "dev": 1, "testing": 2} | {n: i for i, n in enumerate(SPLITS)}


def split_of(name: str) -> int | None:
    """Which split is meant by a name, in capitals or not; None if it names none."""
    return CALLED.get(name.lower())


class Stored(Protocol):
    """Rows that are read when they are asked for: as one array they might fill the memory."""

    def __len__(self) -> int:
        """The number of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, …), as of an array."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read these rows, float32."""


class Dataset(NamedTuple):
    """Rows and classes, in memory or, of pictures, on disk.

    x   float32 [rows, …] images (channels, height, width), vectors (features) or series (channels, time), or int64
        [rows, length] tokens; fedtune's own have pixels scaled to 0..1, then (pixel - mean) / std by channel.  A
        user's are of the type in which they were given, until they are partitioned.
    y   int64 [rows], 0..classes-1.
    train_rows   rows [0, train_rows) are the official training set, the others the official test set; a data
                 set without an official test set has train_rows == rows, one with `split` too.
    owner   int64 [rows], whose each row is (a celebrity's number); None where the data set does not tell.
    split   int64 [rows], 0 train, 1 validation, 2 test, in any order; None where the data set does not tell.
    raw     whether x is as its user gave it, not normalised yet.
    class_names   of each class; () where they are their numbers.
    owner_names   of owner 0, 1, …; () where they are their numbers.
    notes   what its user has to know of what was read, a line each.
    kind    of a user's rows: tokens, numbers, series, images or pictures; "" where type and axes leave it open.
    """

    name: str
    x: np.ndarray | Stored
    y: np.ndarray
    classes: int
    train_rows: int
    owner: np.ndarray | None = None
    split: np.ndarray | None = None
    raw: bool = False
    class_names: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = ""
