"""Weights of a mixture: a quadratic function's least point among non-negative weights that sum to 1."""

from __future__ import annotations

import torch
from torch import Tensor


def least_on_simplex(p: Tensor) -> Tensor:
    """argmin aᵀ P a over a >= 0, Σ a = 1, for a symmetric positive semi-definite P [m, m]; [m].

    With P = RᵀR this is the direction of the non-negative least-squares solution of |R a|² + (Σ a - 1)²: for a given
    sum s, a/s is the least point, and the best s is above 0.  So Lawson and Hanson's method, which ends after finitely
    many steps, solves it exactly.  Negative eigenvalues, which rounding makes, count as 0.
    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    from scipy.optimize import nnls  # imported here: it takes a third of a second

    m = len(p)
    matrix = p.detach().cpu().double()
    values, vectors = torch.linalg.eigh(matrix / matrix.diagonal().mean().clamp(min=1e-300))
    root = values.clamp(min=0).sqrt()[:, None] * vectors.T
    rows = torch.cat([root, torch.ones(1, m, dtype=torch.float64)]).numpy()
    weights = torch.from_numpy(nnls(rows, [0.0] * m + [1.0], maxiter=100 * m)[0])
    return (weights / weights.sum()).to(p)


def least_mixtures(h: Tensor, variance: Tensor) -> Tensor:
    """For each client k the weights a of all that make Σ_j a_j² V_j + |Σ_j a_j (h_k - h_j)|² least, [m, m].

    h [m, E] and variance V [m]: each client's mean, and its variance.  Source: FedPAC, arXiv:2306.11867, section 4.
    """
    deviations = [(one - h).double() for one in h]
    return torch.stack([least_on_simplex(torch.diag(variance.double()) + d @ d.T) for d in deviations]).to(h)
