"""A data set in memory, or with pictures on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

PICTURES = "pictures"  # the kind of rows that are read from a folder of pictures (other kinds: `user_rows`)
SPLITS = ("train", "val", "test")
CALLED = {"training": 0, "valid": 1, "validation": 1, "dev": 1, "testing": 2} | {n: i for i, n in enumerate(SPLITS)}


def split_of(name: str) -> int | None:
    """The split that a name stands for, whatever its case; None if it is not the name of a split."""
    return CALLED.get(name.lower())


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures that are read on access: in one array, CelebA's would take 17 GB.

    files   of each row: paths, or encoded pictures (`picture.Encoded`).
    form    (channels, height, width) of all; height and width are 0 if they differ.
    read    reads one as float32 [channels, height, width], resized to (width, height).
    """

    files: Sequence[Any]
    form: tuple[int, int, int]
    read: Callable[[Any, tuple[int, int]], np.ndarray]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, channels, height, width), like an array's."""
        return len(self), *self.form

    def sized(self, side: int) -> Pictures:
        """The same pictures resized to squares of this side; 0: not resized."""
        return replace(self, form=(self.form[0], side, side)) if side else self

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read these rows: float32 [n, channels, height, width]; UserError for a file that cannot be read."""
        _, height, width = self.form
        x = np.empty((len(rows), *self.form), np.float32)
        for place, row in zip(x, rows.tolist(), strict=True):
            place[:] = self.read(self.files[row], (width, height))
        return x


class Dataset(NamedTuple):
    """Rows and classes, in memory or, of pictures, on disk.

    x   float32 [rows, …] images (channels, height, width), vectors (features) or series (channels, time), or int64
        [rows, length] tokens.  Built-in data sets have pixels scaled to 0..1, then (pixel - mean) / std per channel.
        A user's data keep their type until they are partitioned.
    y   int64 [rows], 0..classes-1.
    train_rows   rows [0, train_rows) are the official training set, the others the official test set; a data
                 set without an official test set has train_rows == rows, one with `split` too.
    owner   int64 [rows], the owner of each row (for example a celebrity's number); None if unknown.
    split   int64 [rows], 0 train, 1 validation, 2 test, in any order; None if the data set has no split.
    raw     whether x is as the user gave it, not normalised yet.
    class_names   one per class; () if classes are named by their numbers.
    owner_names   of owner 0, 1, …; () if owners are named by their numbers.
    notes   notes for the user about what was read, one line each.
    kind    what a user's rows are: tokens, numbers, series, images or pictures; "" if type and axes leave it open.
    """

    name: str
    x: np.ndarray | Pictures
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
