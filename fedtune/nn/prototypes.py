"""Prototypes, one feature vector per class: means, distances, and an equiangular frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core.errors import UserError


def class_means(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class, and its number of rows.

    z [N, D], y [N], mask [N] bool  ->  means [C, D] (zeros if a class has no row), counts [C] integers.
    """
    sums, counts = class_sums(z, y, mask, classes)
    return sums / counts.clamp(min=1)[:, None], counts


def class_sums(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of every class's rows [C, D], and their number [C].  z [N, D], y [N], mask [N] bool."""
    member = F.one_hot(y, classes) * mask[:, None]  # [N, C]
    return member.T.to(z) @ z, member.sum(0)


def mean_by_count(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over all rows, from the clients' means and counts.

    means [m, C, D], counts [m, C]  ->  mean [C, D] (zeros if no client has a row), seen [C] bool.
    """
    total = counts.sum(0)
    mean = torch.einsum("mc,mcd->cd", counts.to(means), means) / total.clamp(min=1)[:, None]
    return mean, total > 0


def row_distance(a: Tensor, b: Tensor, how: str) -> Tensor:
    """Distance of each pair of rows [B] of a and b [B, D]: "l2" the Euclidean norm, "mse" the mean square.

    The norm is at least 1e-6, so that its gradient stays finite if two rows are equal.
    """
    square = (a - b) ** 2
    return square.mean(-1) if how == "mse" else square.sum(-1).clamp(min=1e-12).sqrt()


def mean_distance(protos: Tensor, present: Tensor, how: str) -> Tensor:
    """Mean distance between the prototypes of two different classes; 0 if fewer than two classes have one.

    protos [C, D], seen [C] bool.
    """
    pairs = present[:, None] & present & ~torch.eye(len(present), dtype=torch.bool, device=present.device)
    distances = row_distance(protos[:, None], protos, how)
    return (distances * pairs).sum() / pairs.sum().clamp(min=1)


def pairwise_distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance of every row of a [..., N, D] to every row of b [..., M, D], [..., N, M]; at least 1e-6.

    As |a|² + |b|² - 2ab, without a tensor of size N x M x D.  The bound keeps gradients of equal rows finite.
    """
    square = a.square().sum(-1)[..., None] + b.square().sum(-1)[..., None, :] - 2 * a @ b.mT
    return square.clamp(min=1e-12).sqrt()


def nearest_other(protos: Tensor, has: Tensor) -> Tensor:
    """Distance of each class's prototype to the nearest one of another class, [..., C]; inf if there is none.

    protos [..., C, D], seen [..., C] bool.
    """
    pairs = has[..., :, None] & has[..., None, :] & ~torch.eye(has.shape[-1], dtype=torch.bool, device=has.device)
    return pairwise_distance(protos, protos).masked_fill(~pairs, torch.inf).amin(-1)


def etf(classes: int, dimension: int, generator: torch.Generator) -> Tensor:
    """A simplex equiangular tight frame: unit columns, every pair at inner product -1/(C-1).  [dimension, C] float64.

    Z = sqrt(C/(C-1)) · Q (I - 11ᵀ/C) with Q from the QR decomposition of a Gaussian matrix, R's diagonal made positive.
    C - 1 dimensions are enough for C vectors that sum to zero; UserError for fewer.
    Source: GFPL, arXiv:2602.21873, Eq. 2, 3, 9, 10.
    """
    if dimension < classes - 1:
        raise UserError(
            f"an equiangular frame of {classes} classes needs at least {classes - 1} dimensions, but got {dimension}; "
            f"widen the features (--features {classes}) or the projection (--set projection={classes})"
        )
    width = min(classes, dimension)
    q, r = torch.linalg.qr(torch.randn(dimension, width, generator=generator, dtype=torch.float64))
    q = q * r.diagonal().sign()
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes  # [C, C], rank C - 1
    if width < classes:
        centred = torch.linalg.qr(centred[:, :width])[0].T  # [C - 1, C] orthonormal rows that sum to zero
    return (classes / (classes - 1)) ** 0.5 * q @ centred
