"""Loss terms of a server's generator, as functions of its features h [B, D], each with its gradient.

For a server's small step autograd costs more than the operations.  So a term is prepared once for a round's S steps.
Called with h and a step, it returns its value and its gradient with respect to h [B, D], as autograd would.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Term = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # h, step -> value, slope


def total(*terms: Term) -> Term:
    """The sum of several terms, as one term."""

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        value, slope = terms[0](h, step)
        for other in terms[1:]:
            v, s = other(h, step)
            value, slope = value + v, slope.add_(s)
        return value, slope

    return term


def fidelity(times: float, heads: dict[str, Tensor], share: Tensor, y: Tensor, weighing: str = "labels") -> Term:
    """times · Σ_k mean_b share[k, y_b] · CE(head_k(h_b), y_b): clients with more rows of a class count more for it.

    heads are all uploaded heads, [m, …]; share [m, C]; y [S, B].  weighing="mean": share is averaged over the batch
    first, which is what the released codes compute by multiplying a [B] with a [B, 1].
    """
    # Classes first: one product for all heads, and a softmax over columns, many times as fast as over rows of ten.
    weight, bias = heads["head.weight"].transpose(0, 1), heads["head.bias"].T  # [C, m, D], [C, m]
    classes, m = bias.shape
    weight, bias = weight.flatten(0, 1), bias.reshape(-1, 1)
    counts = share.to(weight)[:, y].transpose(0, 1)  # [S, m, B]
    if weighing == "mean":
        counts = counts.mean(2, keepdim=True).expand_as(counts)
    counts = counts.contiguous() * (times / y.shape[1])
    target = F.one_hot(y, classes).to(weight).transpose(1, 2)[:, :, None]  # [S, C, 1, B]

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        log_p = torch.addmm(bias, weight, h.T).view(classes, m, -1).log_softmax(0)  # [C, m, B]
        right = target[step] * counts[step]
        value = -torch.dot(log_p.flatten(), right.flatten())
        return value, (log_p.exp_().mul_(counts[step]).sub_(right)).view(classes * m, -1).T @ weight

    return term


def diversity(times: float, noise: Tensor, y: Tensor, pairs: str, features: int, over_batch: bool = False) -> Term:
    """times · exp(-mean over pairs of distance(h) · distance(ε)): small if different noise gives different features.

    noise [S, B, Z], y [S, B]; distances are means over dimensions, absolute for h and squared for ε.
    pairs   "same": the pairs p != q with y_p = y_q (1 if there are none); "other": those with y_p != y_q, and "all",
            both over B², as in the released codes.
    over_batch  divide the sum over the "same" pairs by B² as well.
    Source: FedPA, Eq. 7, which divides by B².
    """
    same_class = y[:, :, None] == y[:, None]  # [S, B, B]
    counted, count = ~same_class if pairs == "other" else torch.ones_like(same_class), torch.tensor(y.shape[1] ** 2)
    if pairs == "same":
        counted = same_class & ~torch.eye(y.shape[1], dtype=torch.bool, device=y.device)
        count = count if over_batch else counted.sum((1, 2), keepdim=True).clamp(min=1)
    distance = torch.cdist(noise, noise, compute_mode="donot_use_mm_for_euclid_dist").square() / noise.shape[2]
    weight = (distance * counted / (count.to(distance) * features))[:, :, None]  # [S, B, 1, B]

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        signs = (h[:, None] - h).sign_()  # [B, B, D]
        pull = torch.bmm(weight[step], signs)[:, 0]  # [B, D]: Σ_q weight[p, q] sign(h_p - h_q)
        half_sum = torch.dot(h.flatten(), pull.flatten())  # of Σ weight |h_p - h_q|, which is symmetric
        value = (half_sum * -2).exp() * times
        return value, pull.mul_(value * -2)

    return term


def remoteness(times: float, protos: Tensor, present: Tensor, y: Tensor, how: str, cap: Tensor | float) -> Term:
    """times · min(mean_b distance(h_b, φ_y), cap); a row whose class has no prototype adds 0.

    protos [C, D], seen [C] bool, y [S, B]; how: "l2", the Euclidean norm, or "mse", the mean square.
    """
    target, counts = protos[y], (present[y].to(protos) / y.shape[1])[:, :, None]  # [S, B, D], [S, B, 1]
    pulls = counts * times

    def term(h: Tensor, step: int) -> tuple[Tensor, Tensor]:
        away = h - target[step]
        if how == "mse":
            value = torch.dot(away.square().mean(1), counts[step, :, 0])
            slope = away.mul_(pulls[step] * (2 / away.shape[1]))
        else:
            norm = away.norm(dim=1, keepdim=True).clamp_(min=1e-6)
            value = torch.dot(norm[:, 0], counts[step, :, 0])
            slope = away.mul_(pulls[step] / norm)
        return value.clamp(max=cap) * times, slope.mul_(value <= cap)

    return term
