"""Shifts change the rows of clients: rotation, feature noise, label noise, or swapped labels (concept shift).

A shift does not change which client holds a row, so it combines with any partition and with other shifts.  Every draw
has an address (seed, purpose, client), so a client's rows look the same however many other clients there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtune.core import randomness
from fedtune.data.federation import Federation, Split


class Shifts(NamedTuple):
    """The strength of each shift; the defaults change nothing.

    groups   consecutive clients form a group: client k of K is in group k * groups // K.
    """

    rotation: float = 0.0
    feature_noise: float = 0.0
    swaps: int = 0
    label_noise: float = 0.0
    label_noise_spread: float = 0.0
    noisy_clients: float = 1.0
    noisy_splits: str = "train"
    groups: int = 1


def shifted(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """The federation with all shifts: rotation, then feature noise, then swapped labels, then label noise.

    f holds arrays, which are not changed.  classes: the number of classes that occur, numbered from 0.
    """
    for shift in (rotated, noisy, relabelled, mislabelled):
        f = shift(f, shifts, classes, seed)
    return f


def group_of(client: int, clients: int, groups: int) -> int:
    """The group of a client: neighbours share one."""
    return client * groups // clients


def rotated(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Rotate the images of group g by g * rotation degrees, counterclockwise: training, validation and test rows.

    Quarter turns of square images, and half turns, are exact; others are bilinear, with the border repeated outside.
    Source: rotated MNIST as in IFCA, Ghosh et al., NeurIPS 2020, arXiv:2006.04088 (0, 90, 180, 270 degrees).
    """

    def turned(x: np.ndarray, k: int) -> np.ndarray:
        return turn(x, shifts.rotation * group_of(k, f.clients, shifts.groups))

    return f if not shifts.rotation or shifts.groups == 1 else f._replace(x=_by_client(f, f.x, turned))


def turn(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images [n, channels, height, width] rotated counterclockwise."""
    quarters, square = degrees / 90, x.shape[-1] == x.shape[-2]
    if quarters == int(quarters) and (square or int(quarters) % 2 == 0):
        return np.rot90(x, int(quarters), axes=(-2, -1))
    from scipy.ndimage import rotate  # imported here, because few runs need it

    return np.asarray(rotate(x, degrees, axes=(-1, -2), reshape=False, order=1, mode="nearest"))


def noisy(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Add Gaussian noise with standard deviation feature_noise * k / (K - 1) to the features of client k, in all
    splits.

    So the first client's rows are clean.  The noise is in units of the model's input: features after normalisation.
    Source: NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079.  Differs: theirs is added before normalisation and
    redrawn in every epoch; the paper's text has k / K.
    """

    def with_noise(x: np.ndarray, k: int) -> np.ndarray:
        stream = randomness.numpy_stream(seed, "feature noise", k)
        level = shifts.feature_noise * k / max(1, f.clients - 1)
        return x + np.float32(level) * stream.standard_normal(x.shape, dtype=np.float32)

    return f if not shifts.feature_noise else f._replace(x=_by_client(f, f.x, with_noise))


def relabelled(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Concept shift: in every group but the first, `swaps` pairs of classes swap their labels, in all splits.

    The pairs are drawn from (seed, "concept", group); the pairs of a group are disjoint.
    Source: clients whose labels are swapped by group, as in Sattler et al., TNNLS 2021, arXiv:1910.01991, and Briggs et
    al., IJCNN 2020, arXiv:2004.11791.  Differs: pairs are drawn here.
    """

    def renamed(y: np.ndarray, k: int) -> np.ndarray:
        return concept(group_of(k, f.clients, shifts.groups), shifts.swaps, classes, seed)[y]

    return f if not shifts.swaps else f._replace(y=_by_client(f, f.y, renamed))


def concept(group: int, swaps: int, classes: int, seed: int) -> np.ndarray:
    """The label that a group uses for each class, [classes]."""
    names = np.arange(classes)
    if group:
        pairs = randomness.numpy_stream(seed, "concept", group).permutation(classes)[: 2 * swaps].reshape(-1, 2)
        names[pairs] = pairs[:, ::-1]
    return names


def mislabelled(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Label noise: flip a share of each client's training labels, each to another class chosen uniformly.

    A client is noisy with probability noisy_clients; its share is uniform on label_noise ± label_noise_spread, within
    0..1, rounded to whole rows.  Rows that are flipped at one share are also flipped at a larger one, to the same
    class. Test labels are never flipped, and validation labels only with noisy_splits "train+val": by default the noise
    affects what clients learn from, not what trials are selected by.
    Source: symmetric noise as in FedCorr, Xu et al., CVPR 2022, arXiv:2204.04677 (noisy_clients is their ρ; a lower
    bound τ on the level is label_noise (1 + τ) / 2 with a spread of (1 - τ) / 2).  Differs: theirs flips each row with
    that probability, to any class, including its own.
    """
    if not (shifts.label_noise or shifts.label_noise_spread) or classes < 2:
        return f
    y = f.y.copy()
    for k in range(f.clients):
        stream = randomness.numpy_stream(seed, "label noise", k)
        chance, level = stream.random(), shifts.label_noise + shifts.label_noise_spread * (2 * stream.random() - 1)
        if chance >= shifts.noisy_clients:
            continue
        for name in shifts.noisy_splits.split("+"):
            rows = _rows(getattr(f, name), k)
            order, offsets = stream.permutation(len(rows)), stream.integers(1, classes, len(rows))
            flipped = order[: round(min(1.0, max(0.0, level)) * len(rows))]
            y[rows[flipped]] = (y[rows[flipped]] + offsets[flipped]) % classes
    return f._replace(y=y)


def _rows(table: Split, k: int) -> np.ndarray:
    rows: np.ndarray = table.rows[k, : table.counts[k]]
    return rows


def _by_client(f: Federation, values: np.ndarray, change: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """A copy of values [R, …] with every client's rows changed."""
    out = values.copy()
    for k in range(f.clients):
        rows = np.concatenate([_rows(table, k) for table in (f.train, f.val, f.test)])
        out[rows] = change(values[rows], k)
    return out
