"""What clients see of the rows that a partition gave them: rotated, noisy, mislabelled, or named by another concept.

A shift changes no row's owner, so it goes on top of any partition and of the other shifts.  Whatever is drawn has an
address (seed, purpose, client), so a client's rows look the same however many others there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtune.core import randomness
from fedtune.data.federation import Federation, Split


class Shifts(NamedTuple):
    """How much of each; the defaults leave everything as it is.

    groups   consecutive clients form a group: client k of K is of group k * groups // K.
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
    """The federation as its clients see it: rotated, then noisy; labels by concept, then with their noise.

    f holds arrays, which stay as they are.  classes: that occur, numbered from 0.
    """
    for shift in (rotated, noisy, relabelled, mislabelled):
        f = shift(f, shifts, classes, seed)
    return f


def group_of(client: int, clients: int, groups: int) -> int:
    """The group of a client: neighbours share one."""
    return client * groups // clients


def rotated(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Turn the images of group g by g * rotation degrees, counterclockwise: training, validation and test rows.

    Quarter turns of square images, and half turns, move pixels; others are bilinear, with the border repeated outside.
    Source: rotated MNIST as in IFCA, Ghosh et al., NeurIPS 2020, arXiv:2006.04088 (0, 90, 180, 270 degrees).
    """

    def turned(x: np.ndarray, k: int) -> np.ndarray:
        return turn(x, shifts.rotation * group_of(k, f.clients, shifts.groups))

    return f if not shifts.rotation or shifts.groups == 1 else f._replace(x=_by_client(f, f.x, turned))


def turn(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images [n, channels, height, width] turned counterclockwise."""
    quarters, square = degrees / 90, x.shape[-1] == x.shape[-2]
    if quarters == int(quarters) and (square or int(quarters) % 2 == 0):
        return np.rot90(x, int(quarters), axes=(-2, -1))
    from scipy.ndimage import rotate  # here, as few need it

    return np.asarray(rotate(x, degrees, axes=(-1, -2), reshape=False, order=1, mode="nearest"))


def noisy(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Add Gaussian noise to the features of client k, of standard deviation feature_noise * k / (K - 1).

    So the first client's are clean.  The unit is that of the features as a model sees them: normalised.  All splits.
    Source: NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079.  Differs: theirs is added before normalisation, anew
    in every epoch; the paper's text has k / K.
    """

    def with_noise(x: np.ndarray, k: int) -> np.ndarray:
        stream = randomness.numpy_stream(seed, "feature noise", k)
        level = shifts.feature_noise * k / max(1, f.clients - 1)
        return x + np.float32(level) * stream.standard_normal(x.shape, dtype=np.float32)

    return f if not shifts.feature_noise else f._replace(x=_by_client(f, f.x, with_noise))


def relabelled(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Concept shift: in every group but the first, `swaps` pairs of classes have each other's label, in all splits.

    Which pairs is drawn from (seed, "concept", group); pairs of one group are disjoint.
    Source: clients whose labels are swapped by group, as in Sattler et al., TNNLS 2021, arXiv:1910.01991, and Briggs et
    al., IJCNN 2020, arXiv:2004.11791.  Differs: pairs are drawn here.
    """

    def renamed(y: np.ndarray, k: int) -> np.ndarray:
        return concept(group_of(k, f.clients, shifts.groups), shifts.swaps, classes, seed)[y]

    return f if not shifts.swaps else f._replace(y=_by_client(f, f.y, renamed))


def concept(group: int, swaps: int, classes: int, seed: int) -> np.ndarray:
    """What a group calls each class, [classes]."""
    names = np.arange(classes)
    if group:
        pairs = randomness.numpy_stream(seed, "concept", group).permutation(classes)[: 2 * swaps].reshape(-1, 2)
        names[pairs] = pairs[:, ::-1]
    return names


def mislabelled(f: Federation, shifts: Shifts, classes: int, seed: int) -> Federation:
    """Flip a share of each client's training labels to another class, each of the others as likely as any.

    A client is noisy with probability noisy_clients; its share is uniform on label_noise ± label_noise_spread, within
    0..1, rounded to whole rows.  Rows that are flipped at one share are flipped at a larger one, to the same class.
    Test labels are never touched, and validation labels only under noisy_splits "train+val": by itself the noise is
    in what clients learn from, not in what is selected by.
    Source: symmetric noise as in FedCorr, Xu et al., CVPR 2022, arXiv:2204.04677 (noisy_clients is their ρ; a lower
    bound τ on the level is label_noise (1 + τ) / 2 with a spread of (1 - τ) / 2).  Differs: theirs flips each row with
    that probability, to any class, its own included.
    """
    if not (shifts.label_noise or shifts.label_noise_spread) or classes < 2:
        return f
    y = f.y.copy()
    for k in range(f.clients):
        stream = randomness.numpy_stream(seed, "label noise", k)
        drawn, level = stream.random(), shifts.label_noise + shifts.label_noise_spread * (2 * stream.random() - 1)
        if drawn >= shifts.noisy_clients:
            continue
        for name in shifts.noisy_splits.split("+"):
            own = _rows(getattr(f, name), k)
            order, by = stream.permutation(len(own)), stream.integers(1, classes, len(own))
            flipped = order[: round(min(1.0, max(0.0, level)) * len(own))]
            y[own[flipped]] = (y[own[flipped]] + by[flipped]) % classes
    return f._replace(y=y)


def _rows(table: Split, k: int) -> np.ndarray:
    rows: np.ndarray = table.rows[k, : table.counts[k]]
    return rows


def _by_client(f: Federation, values: np.ndarray, change: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """A copy of values [R, …] in which every client's rows are changed."""
    out = values.copy()
    for k in range(f.clients):
        own = np.concatenate([_rows(table, k) for table in (f.train, f.val, f.test)])
        out[own] = change(values[own], k)
    return out
