"""Shifts change the rows of clients: rotation, feature noise, label noise, or swapped labels (concept shift).

A shift does not change which client holds a row, so it combines with any partition and with other shifts.  Every draw
has an address (seed, purpose, client), so a client's rows look the same however many other clients there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtune.core import randomness
from fedtune.data.federation import Federation, Split


def shifted(f: Federation, shifts: Any, classes: int, seed: int) -> Federation:
    """The federation with all shifts: rotation, then feature noise, then swapped labels, then label noise.

    f holds arrays, which are not changed.  shifts: a scenario, whose fields of these names are the strengths; at their
    defaults nothing changes.  classes: the number of classes that occur, numbered from 0.  All but label noise change
    training, validation and test rows.  Client k of K is in group k * groups // K.

    rotation        images of group g are rotated by g * rotation degrees, counterclockwise.
                    Source: rotated MNIST as in IFCA, Ghosh et al., NeurIPS 2020, arXiv:2006.04088 (0, 90, 180, 270).
    feature_noise   Gaussian noise with standard deviation feature_noise * k / (K - 1) is added to the features of
                    client k, so the first client's are clean.  In units of the model's input, after normalisation.
                    Source: NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079.  Differs: theirs is added before
                    normalisation and redrawn in every epoch; the paper's text has k / K.
    swaps           concept shift: in every group but the first, so many pairs of classes swap their labels (`concept`).
    label_noise     a share of each client's training labels is flipped (`_mislabelled`).
    """
    if not any((shifts.rotation, shifts.feature_noise, shifts.swaps, shifts.label_noise, shifts.label_noise_spread)):
        return f
    x, y = f.x.copy() if shifts.rotation or shifts.feature_noise else f.x, f.y.copy()
    for k in range(f.clients):
        group = k * shifts.groups // f.clients
        rows = np.concatenate([_rows(table, k) for table in (f.train, f.val, f.test)])
        if shifts.rotation and group:
            x[rows] = turn(x[rows], shifts.rotation * group)
        if shifts.feature_noise:
            stream = randomness.numpy_stream(seed, "feature noise", k)
            level = np.float32(shifts.feature_noise * k / max(1, f.clients - 1))
            x[rows] += level * stream.standard_normal((len(rows), *f.shape), dtype=np.float32)
        if shifts.swaps:
            y[rows] = concept(group, shifts.swaps, classes, seed)[y[rows]]
        if (shifts.label_noise or shifts.label_noise_spread) and classes > 1:
            _mislabelled(f, y, k, shifts, classes, seed)
    return f._replace(x=x, y=y)


def turn(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images [n, channels, height, width] rotated counterclockwise.

    Quarter turns of square images, and half turns, are exact; others are bilinear, with the border repeated outside.
    """
    quarters, square = degrees / 90, x.shape[-1] == x.shape[-2]
    if quarters == int(quarters) and (square or int(quarters) % 2 == 0):
        return np.rot90(x, int(quarters), axes=(-2, -1))
    from scipy.ndimage import rotate  # imported here, because few runs need it

    return np.asarray(rotate(x, degrees, axes=(-1, -2), reshape=False, order=1, mode="nearest"))


def concept(group: int, swaps: int, classes: int, seed: int) -> np.ndarray:
    """The label that a group uses for each class, [classes].

    The pairs that swap are drawn from (seed, "concept", group); the pairs of a group are disjoint.
    Source: clients whose labels are swapped by group, as in Sattler et al., TNNLS 2021, arXiv:1910.01991, and Briggs et
    al., IJCNN 2020, arXiv:2004.11791.  Differs: pairs are drawn here.
    """
    names = np.arange(classes)
    if group:
        pairs = randomness.numpy_stream(seed, "concept", group).permutation(classes)[: 2 * swaps].reshape(-1, 2)
        names[pairs] = pairs[:, ::-1]
    return names


def _mislabelled(f: Federation, y: np.ndarray, k: int, shifts: Any, classes: int, seed: int) -> None:
    """Flip a share of client k's training labels in y, each to another class chosen uniformly.

    A client is noisy with probability noisy_clients; its share is uniform on label_noise ± label_noise_spread, within
    0..1, rounded to whole rows.  Rows that are flipped at one share are also flipped at a larger one, to the same
    class. Test labels are never flipped, and validation labels only with noisy_splits "train+val": by default the noise
    affects what clients learn from, not what trials are selected by.
    Source: symmetric noise as in FedCorr, Xu et al., CVPR 2022, arXiv:2204.04677 (noisy_clients is their ρ; a lower
    bound τ on the level is label_noise (1 + τ) / 2 with a spread of (1 - τ) / 2).  Differs: theirs flips each row with
    that probability, to any class, including its own.
    """
    stream = randomness.numpy_stream(seed, "label noise", k)
    chance, level = stream.random(), shifts.label_noise + shifts.label_noise_spread * (2 * stream.random() - 1)
    if chance >= shifts.noisy_clients:
        return
    for name in shifts.noisy_splits.split("+"):
        rows = _rows(getattr(f, name), k)
        order, offsets = stream.permutation(len(rows)), stream.integers(1, classes, len(rows))
        flipped = order[: round(min(1.0, max(0.0, level)) * len(rows))]
        y[rows[flipped]] = (y[rows[flipped]] + offsets[flipped]) % classes


def _rows(table: Split, k: int) -> np.ndarray:
    rows: np.ndarray = table.rows[k, : table.counts[k]]
    return rows
