"""Kullback-Leibler divergences between softmaxed scores, and the discrepancy of two samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def kl(target: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)), the mean over rows ("batchmean").  [B, C] both."""
    return kl_rows(target, logits).mean()


def kl_rows(target: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)) of every row [B].  [B, C] both."""
    log_p = target.log_softmax(1)
    return (log_p.exp() * (log_p - logits.log_softmax(1))).sum(1)  # vmap has no rule for F.kl_div


def imitate(logits: Tensor, teacher: Tensor, coupled: bool = False, over: str = "rows") -> Tensor:
    """KL(softmax(teacher) || softmax(logits)), [B, C] both.  coupled: the gradient also reaches the teacher.

    over="elements" is the mean over rows and classes (PyTorch's default reduction): 1/C of the mean over rows.
    """
    distance = kl(teacher if coupled else teacher.detach(), logits)
    return distance / logits.shape[1] if over == "elements" else distance


def mmd(x: Tensor, y: Tensor, widths: Sequence[float | Tensor]) -> Tensor:
    """Squared maximum mean discrepancy of two samples [N, D] and [M, D], with a sum of Gaussian kernels.

    k(a, b) = Σ_w exp(-|a - b|² / 2w) over the widths (variances).  Source: Gretton et al., JMLR 13 (2012), equation 5.
    """

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        square = (a[:, None] - b).square().sum(2)  # the very differences: a row is at 0 from itself
        return torch.stack([(-square / (2 * w)).exp() for w in widths]).sum(0).mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)
