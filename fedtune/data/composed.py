"""Data sets of many classes, made of others: side by side, or one whose images are turned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtune.data.dataset import Dataset

TURNS = 4  # quarter turns, which move pixels and change none


def side_by_side(name: str, parts: Sequence[Dataset]) -> Dataset:
    """The rows of all, in memory, with the classes of each numbered on from those before it.

    All rows are one pool: an official test set is one no longer, as the others need not have one.
    """
    first = np.cumsum([0, *(part.classes for part in parts)])
    x = np.concatenate([np.asarray(part.x) for part in parts])
    y = np.concatenate([part.y + before for part, before in zip(parts, first[:-1], strict=True)])
    return Dataset(name, x, y, int(first[-1]), len(y))


def by_rotation(name: str, data: Dataset) -> Dataset:
    """Class c turned counterclockwise by q quarters becomes class q * classes + c; data's own rows are turned in place.

    Every row is turned once, the i-th of its class by i mod 4 quarters, so no image is in two classes, and a test image
    is nobody's training image.  Images are square; the official test set stays one.
    Source: classes by rotation as in Santoro et al., ICML 2016, arXiv:1605.06065 (Omniglot).  Differs: there each
    image is in all four classes.
    """
    x, y = np.asarray(data.x), data.y.copy()
    for c in range(data.classes):
        for quarters in range(TURNS):
            rows = np.flatnonzero(data.y == c)[quarters::TURNS]
            x[rows] = np.rot90(x[rows], quarters, axes=(-2, -1))
            y[rows] = quarters * data.classes + c
    return Dataset(name, x, y, TURNS * data.classes, data.train_rows)
