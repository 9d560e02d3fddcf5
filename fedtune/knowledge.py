"""Mathematics that several papers share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.errors import UserError


def class_means(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of every class, and how many rows it had.

    z [N, D], y [N], mask [N] bool  ->  means [C, D] (zeros where a class has no row), counts [C] whole numbers.
    """
    member = F.one_hot(y, classes) * mask[:, None]  # [N, C]
    counts = member.sum(0)
    return member.T.to(z) @ z / counts.clamp(min=1)[:, None], counts


def mean_by_count(means: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over all rows, from the clients' means and counts.

    means [m, C, D], counts [m, C]  ->  mean [C, D] (zeros where nobody had a row), seen [C] bool.
    """
    total = counts.sum(0)
    mean = torch.einsum("mc,mcd->cd", counts.to(means), means) / total.clamp(min=1)[:, None]
    return mean, total > 0


def etf(classes: int, dimension: int, generator: torch.Generator) -> Tensor:
    """A simplex equiangular tight frame: unit columns, every pair at inner product -1/(C-1).  [dimension, C] float64.

    Z = sqrt(C/(C-1)) · Q (I - 11ᵀ/C) with Q from the QR decomposition of a Gaussian matrix, R's diagonal made positive
    so that Q is the same everywhere.  That needs dimension >= C; one dimension less is still enough for C vectors
    that sum to zero, so there Q spans them without the redundant direction.  Fewer hold no such frame.
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
