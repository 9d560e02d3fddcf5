"""Data sets with many classes, composed of others: several side by side, or one with rotated images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtune.data.dataset import Dataset

TURNS = 4  # quarter turns, which are exact: they only move pixels


def side_by_side(name: str, parts: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets in memory; the classes of each are numbered after those of the one before.

    All rows form one pool.  An official test set is not kept apart, because the other data sets may have none.
    """
    offsets = np.cumsum([0, *(part.classes for part in parts)])
    x = np.concatenate([np.asarray(part.x) for part in parts])
    y = np.concatenate([part.y + offset for part, offset in zip(parts, offsets[:-1], strict=True)])
    return Dataset(name, x, y, int(offsets[-1]), len(y))


def by_rotation(name: str, data: Dataset) -> Dataset:
    """Class c rotated counterclockwise by q quarter turns becomes class q * classes + c; `data` is changed in place.

    Every row is rotated once, the i-th of its class by i mod 4 quarter turns.  So no image is in two classes, and no
    test image is also a training image.  Images are square; the official test set stays the test set.
    Source: classes by rotation as in Santoro et al., ICML 2016, arXiv:1605.06065 (Omniglot).  Differs: there each image
    is in all four classes.
    """
    x, y = np.asarray(data.x), data.y.copy()
    for c in range(data.classes):
        for quarters in range(TURNS):
            rows = np.flatnonzero(data.y == c)[quarters::TURNS]
            x[rows] = np.rot90(x[rows], quarters, axes=(-2, -1))
            y[rows] = quarters * data.classes + c
    return Dataset(name, x, y, TURNS * data.classes, data.train_rows)
