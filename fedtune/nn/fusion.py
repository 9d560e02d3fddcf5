"""Fuse many clients' Gaussians of a class on the server: those that are close become one.

GFPL, arXiv:2602.21873 ("the paper" below), section 3.4 and algorithm 1, with diagonal covariances.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtune.nn.mixtures import Mixtures

LINKAGES = ("complete", "ball", "single")


def bhattacharyya(means_a: Tensor, variances_a: Tensor, means_b: Tensor, variances_b: Tensor) -> Tensor:
    """Bhattacharyya distance of diagonal Gaussians, [..., D] each, leading axes broadcast to [...].

    0 for equal Gaussians, symmetric, and a sum over the D axes: it grows with D.  Variances must be > 0.
    Source: the paper, Eq. 8 on diagonal matrices (Eq. 7 for D = 1).
    """
    middle = (variances_a + variances_b) / 2
    distances = (means_a - means_b).square() / middle
    unlike = (middle.square() / (variances_a * variances_b)).log()  # the three logarithms of Eq. 8 in one
    return (distances / 8 + unlike / 4).sum(-1)


def pairwise(means: Tensor, variances: Tensor) -> Tensor:
    """Bhattacharyya distances [L, L] between all pairs of L Gaussians; means and variances [L, D].

    Two rows at a time, from the diagonal on: no tensor of size L x L x D is made, and the strips stay in cache.
    """
    distances = means.new_zeros(len(means), len(means))
    for i in range(0, len(means), 2):
        block = slice(i, i + 2)
        strip = bhattacharyya(means[block, None], variances[block, None], means[i:], variances[i:])
        distances[block, i:] = strip
        distances[i:, block] = strip.T
    return distances


def fuse(
    weights: Tensor, means: Tensor, variances: Tensor, threshold: float, linkage: str = "complete"
) -> tuple[Mixtures, Tensor]:
    """Cluster the components of one class over all clients and replace each cluster by one Gaussian.  Server code.

    weights    [L] rows that each component represents; components of weight 0 are left out.
    means, variances  [L, D], ordered by client, then component.
    threshold  Bhattacharyya distance; closer means strictly smaller.  0 fuses nothing, inf everything.
    linkage    "complete": one by one, each component closer than the threshold to all members so far;
               "ball": all that are close to the seed; "single": all that are linked by a chain of close ones.
    Returns the fused components in the order of their seeds, with summed weights, and the fused component of each
    input [L] (-1: left out).  Seeds and candidates are visited by descending weight, ties in the given order.
    Raises ValueError for an unknown linkage.
    Source: the paper, Algorithm 1.  Its line 5 reads "ball" as printed; "complete" keeps its condition for every pair.
    """
    if linkage not in LINKAGES:
        raise ValueError(f"linkage is one of {', '.join(LINKAGES)}; got {linkage!r}.")
    order = weights.argsort(descending=True, stable=True)[: int((weights > 0).sum())]
    w, mu, v = (t[order].double() for t in (weights, means, variances))
    clusters = _clusters((pairwise(mu, v) < threshold).cpu().numpy(), linkage)
    cluster = torch.from_numpy(clusters).to(order)
    labels = torch.full_like(weights, -1, dtype=torch.long).index_copy(0, order, cluster)
    total = w.new_zeros(int(clusters.max(initial=-1)) + 1).index_add(0, cluster, w)

    def average(rows: Tensor) -> Tensor:
        return torch.zeros_like(rows[: len(total)]).index_add(0, cluster, w[:, None] * rows) / total[:, None]

    centre = average(mu)
    spread = average(v + (mu - centre[cluster]).square())  # lines 13 to 15: moments of the pooled rows
    return Mixtures(*(t.to(weights.dtype) for t in (total, centre, spread))), labels


def fuse_classes(
    weights: Tensor, local: Mixtures, kind: Tensor | None, kinds: int, threshold: float, linkage: str
) -> tuple[Mixtures, Tensor, Tensor]:
    """`fuse` for each class, over all clients of one architecture, because each architecture has its own feature space.

    weights  [m, C, n] of the clients' mixtures; their means and variances are [m, C, n, D].
    kind     [m] the architecture of each client, below `kinds`; None: all have the same.
    Returns mixtures [C, L] whose weights add up to 1 for each class and architecture, padded with weight 0; the
    architecture of each component [C, L]; and the number of components before, and of clusters under each of
    LINKAGES [1 + 3].
    """
    of_class, homes, counted = [], [], torch.zeros(1 + len(LINKAGES), dtype=torch.float64)
    for c in range(weights.shape[1]):
        mixed = []
        for k in range(kinds):
            is_member = weights[:, c] > 0 if kind is None else (weights[:, c] > 0) & (kind == k)[:, None]
            w, mu, v = (t[:, c].flatten(0, 1)[is_member.flatten()] for t in (weights, local.means, local.variances))
            clusters = {how: fuse(w, mu, v, threshold, how)[0] for how in LINKAGES}
            counted += counted.new_tensor([len(w), *(len(clusters[how].weights) for how in LINKAGES)])
            total = clusters[linkage].weights.sum().clamp(min=1e-12)
            mixed.append(clusters[linkage]._replace(weights=clusters[linkage].weights / total))
        of_class.append(Mixtures(*(torch.cat(part) for part in zip(*mixed, strict=True))))
        homes.append(torch.cat([torch.full_like(one.weights, k, dtype=torch.long) for k, one in enumerate(mixed)]))
    padded = (pad_sequence(list(part), batch_first=True) for part in zip(*of_class, strict=True))
    return Mixtures(*padded), pad_sequence(homes, batch_first=True), counted


def _clusters(threshold: np.ndarray, linkage: str) -> np.ndarray:
    """Number the clusters of a symmetric relation near [L, L]; each starts at the first index still free."""
    label = np.full(len(threshold), -1)
    for seed in range(len(threshold)):
        if label[seed] >= 0:
            continue
        number = label[seed] = label.max() + 1
        candidates = threshold[seed] & (label < 0)
        while candidates.any():
            joined = np.flatnonzero(candidates)[: 1 if linkage == "complete" else None]
            label[joined] = number
            if linkage == "complete":
                candidates &= threshold[joined[0]]
            elif linkage == "single":
                candidates = threshold[joined].any(0)
            candidates = candidates & (label < 0)
    return label
