"""What a server's generator descends on: terms of its features h [B, D], each with its gradient.

A server's step is small, and autograd's bookkeeping through twenty operations costs more than they do.  So a term is
made once for a round's S steps, from all that does not depend on the net; called with h and a step it gives its value
and its slope, the gradient by h [B, D] (tests: autograd's).  `known` hands both back to autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Term = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # h, step -> value, slope


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grad, None, None


def known(term: Term, h: Tensor, step: int) -> Tensor:
    """The term's value at h, through which autograd goes on with its slope."""
    found: Tensor = _Known.apply(h, *term(h.detach(), step))
    return found


def weighted(*terms: tuple[float, Term]) -> Term:
    """Σ weight · term."""

    def total(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        (w, (value, slope)), *others = [(w, term(h, step)) for w, term in terms]
        value, slope = value * w, slope * w
        for w, (v, s) in others:
            value, slope = value + w * v, slope.add_(s, alpha=w)
        return value, slope

    return total


def fidelity(heads: dict[str, Tensor], share: Tensor, y: Tensor, weighing: str = "labels") -> Term:
    """Σ_k mean_b share[k, y_b] · CE(head_k(h_b), y_b): who has more of a class says more about it.

    heads are all that were sent, [m, …]; share [m, C]; y [S, B].  weighing="mean": share averaged over the batch first,
    which is what a [B] times a [B, 1] became in the codes.
    """
    # Classes first: one product for all heads, and a softmax down columns, many times as fast as along rows of ten.
    weight, bias = heads["head.weight"].transpose(0, 1), heads["head.bias"].T  # [C, m, D], [C, m]
    classes, m = bias.shape
    weight, bias = weight.flatten(0, 1), bias.reshape(-1, 1)
    counts = share.to(weight)[:, y].transpose(0, 1)  # [S, m, B]
    if weighing == "mean":
        counts = counts.mean(2, keepdim=True).expand_as(counts)
    counts = counts.contiguous() / y.shape[1]
    target = F.one_hot(y, classes).to(weight).transpose(1, 2)[:, :, None]  # [S, C, 1, B]

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        log_p = torch.addmm(bias, weight, h.T).view(classes, m, -1).log_softmax(0)  # [C, m, B]
        right = target[step] * counts[step]
        value = -torch.dot(log_p.flatten(), right.flatten())
        return value, (log_p.exp_().mul_(counts[step]).sub_(right)).view(classes * m, -1).T @ weight

    return term


def diversity(noise: Tensor, y: Tensor, pairs: str, features: int) -> Term:
    """exp(-mean over pairs of distance(h) · distance(ε)): falls as unlike noise gives unlike features.

    noise [S, B, Z], y [S, B]; distances are means over dimensions, absolute for h and squared for ε.
    pairs   "same": the pairs p != q with y_p = y_q (1 if there are none); "other": those with y_p != y_q, and "all",
            both over B², as in the codes.
    Source: FedPA, Eq. 8.
    """
    alike = y[:, :, None] == y[:, None]  # [S, B, B]
    if pairs == "same":
        kept = alike & ~torch.eye(y.shape[1], dtype=torch.bool, device=y.device)
        count = kept.sum((1, 2), keepdim=True).clamp(min=1)
    else:
        kept, count = ~alike if pairs == "other" else torch.ones_like(alike), torch.tensor(y.shape[1] ** 2)
    apart = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist").square() / noise.shape[2]
    weight = (apart * kept / (count.to(apart) * features))[:, :, None]  # [S, B, 1, B]

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        signs = torch.sign(h[:, None] - h)  # [B, B, D]
        pull = torch.bmm(weight[step], signs)[:, 0]  # [B, D]: Σ_q weight[p, q] sign(h_p - h_q)
        value = (torch.dot(h.flatten(), pull.flatten()) * -2).exp()  # Σ_p h_p · pull_p is half of Σ weight |h_p - h_q|
        return value, pull.mul_(value * -2)

    return term


def remoteness(protos: Tensor, seen: Tensor, y: Tensor, how: str, cap: Tensor | float) -> Term:
    """min(mean_b distance(h_b, φ_y), cap); a row whose class has no prototype adds 0.

    protos [C, D], seen [C] bool, y [S, B]; how: "l2", the Euclidean norm, or "mse", the mean square.
    """
    target, counts = protos[y], (seen[y].to(protos) / y.shape[1])[:, :, None]  # [S, B, D], [S, B, 1]

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        away, count = h - target[step], counts[step]
        if how == "mse":
            value = torch.dot(away.square().mean(1), count[:, 0])
            slope = away.mul_(count * (2 / away.shape[1]))
        else:
            norm = away.norm(dim=1, keepdim=True).clamp_(min=1e-6)
            value = torch.dot(norm[:, 0], count[:, 0])
            slope = away.mul_(count / norm)
        return value.clamp(max=cap), slope.mul_(value <= cap)

    return term
