"""Kullback-Leibler divergences between softmaxed scores."""

from __future__ import annotations

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
    apart = kl(teacher if coupled else teacher.detach(), logits)
    return apart / logits.shape[1] if over == "elements" else apart
