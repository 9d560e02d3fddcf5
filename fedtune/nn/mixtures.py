"""Diagonal Gaussian mixtures: fitted per class at each client by a batched EM, and sampled.

GFPL, arXiv:2602.21873 ("the paper" below), sections 3.3 and 4.2.  Covariances are diagonal: a hundred rows in
fifty dimensions are too few to estimate a full matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtune.nn.layers import of_clients

_LLOYD = 3  # rounds of k-means between seeding and EM: they gain about one nat per row (benchmarks/em.py at af3fb7d)
_NUMBERS = 2**18  # feature values per batch: enough for efficient batching, few enough for the cache
_TINY = 1e-300


class Mixtures(NamedTuple):
    """Mixtures of up to L diagonal Gaussians in D dimensions, over any leading axes.

    A component with weight 0 is absent: its mean and variance are finite placeholders, the variance positive.
    """

    weights: Tensor  # [..., L]
    means: Tensor  # [..., L, D]
    variances: Tensor  # [..., L, D]


def fit(
    z: Tensor, member: Tensor, noise: Tensor, components: int, floor: float, iterations: int = 100, tol: float = 1e-3
) -> Mixtures:
    """Fit one mixture to the rows of each class.  Client code: for one client, and safe inside `vmap`.

    z       [N, D] features.     member  [C, N] bool, which rows belong to which class (padding: to none).
    noise   [C, >= components] uniform numbers in [0, 1); they alone determine the initial seeds.
    floor   smallest variance, as a share of the mean variance of the class; never below 1e-6.
    Returns weights [C, n], means [C, n, D], variances [C, n, D], n = components, in the dtype of z (computed in
    float64).  A class of N_c rows gets min(n, N_c // 5) components, at least one; the others have weight 0.
    EM starts from k-means++ seeds and three rounds of k-means, and stops per class once the mean
    log-likelihood changes by less than tol (nats per row).  Not differentiable.
    Source: the paper, Eqs. 5 and 6; initialisation, sizes and floor are ours.
    """
    return Mixtures(*_Fit.apply(z, member, noise[..., :components], floor, iterations, tol))


class _Fit(torch.autograd.Function):
    """`fit` over any leading axes.  The stopping criterion depends on the data, which `vmap` alone cannot express."""

    @staticmethod
    def forward(
        z: Tensor, member: Tensor, noise: Tensor, floor: float, iterations: int, tol: float
    ) -> tuple[Tensor, ...]:
        lead, classes = member.shape[:-2], member.shape[-2]
        rows = z.flatten(0, -3) if lead else z[None]  # [K, N, D]
        member, noise = member.reshape(-1, member.shape[-1]), noise.reshape(-1, noise.shape[-1]).double()  # [J, .]
        counts = member.sum(1)
        zeros = noise.new_zeros(*noise.shape, z.shape[-1])
        fitted = Mixtures(torch.zeros_like(noise), zeros, torch.ones_like(zeros))
        todo = counts.argsort(descending=True, stable=True)  # similar sizes need little padding
        todo = todo[: int((counts > 0).sum())]
        while len(todo):
            width = int(counts[todo[0]])
            group = max(1, _NUMBERS // (width * z.shape[-1]))
            jobs, todo = todo[:group], todo[group:]
            index = member[jobs].byte().argsort(dim=1, descending=True, stable=True)[:, :width]
            x = rows[(jobs // classes)[:, None], index].double()  # [j, width, D]
            mask = torch.arange(width, device=z.device) < counts[jobs, None]
            for total, part in zip(fitted, _fit(x, mask, noise[jobs], floor, iterations, tol), strict=True):
                total[jobs] = part
        return tuple(t.to(z.dtype).reshape(*lead, classes, *t.shape[1:]) for t in fitted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError("a fitted mixture has no gradient: EM is an estimate, not a layer.")

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _Fit.apply(*of_clients(info, args[:3], in_dims[:3]), *args[3:]), (0, 0, 0)


def _fit(x: Tensor, mask: Tensor, noise: Tensor, floor: float, iterations: int, tol: float) -> Mixtures:
    """`fit` for J problems with their rows gathered: x [J, N, D], mask [J, N], noise [J, n], all float64."""
    centre, rows = _centre(x, mask)
    x, squares = rows.chunk(2, -1)
    counts = mask.sum(1)
    lowest = (floor * squares.sum(1).mean(1) / counts).clamp_min(1e-6)  # [J]
    size = (counts // 5).clamp(1, noise.shape[1])  # [J]
    start = _maximise(rows, _members(_nearest_seed(x, mask, noise, size), mask, noise.shape[1]), lowest)
    for _ in range(_LLOYD):
        distances = torch.baddbmm(start.means.square().sum(-1)[..., None], start.means, x.mT, alpha=-2)  # [J, n, N]
        distances.masked_fill_((start.weights == 0)[..., None], torch.inf)
        start = _maximise(rows, _members(distances.argmin(1), mask, noise.shape[1]), lowest)
    mixture, _ = _iterate(rows, mask, start, lowest, iterations, tol)
    return mixture._replace(means=mixture.means + centre)


def _members(owner: Tensor, mask: Tensor, size: int) -> Tensor:
    """Hard assignments [J, size, N] of rows to components, from owner [J, N]; 0 on padding."""
    return ((owner[:, None] == torch.arange(size, device=owner.device)[:, None]) & mask[:, None]).double()


def _nearest_seed(x: Tensor, mask: Tensor, noise: Tensor, size: Tensor) -> Tensor:
    """Draw size [J] seeds per problem by k-means++, and return the seed nearest to each row, [J, N]."""
    owner = torch.zeros(mask.shape, dtype=torch.long, device=x.device)
    nearest, draw, last = torch.full_like(x[..., 0], torch.inf), mask.double(), mask.sum(1) - 1
    for k in range(noise.shape[1]):
        mass = draw.cumsum(1)
        row = (mass <= noise[:, k : k + 1] * mass[:, -1:]).sum(1).minimum(last)  # no mass left: any real row
        seed = x[torch.arange(len(x), device=x.device), row]
        # Differences, not |x|^2 - 2xs + |s|^2: equal rows are then at distance exactly 0, in any batch.
        distance = (x - seed[:, None]).square().sum(-1)
        closer = (distance < nearest) & (k < size)[:, None]
        owner, nearest = torch.where(closer, k, owner), torch.where(closer, distance, nearest)
        draw = nearest * mask
    return owner


def _centre(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean row c [J, 1, D], and (x - c, (x - c)^2) [J, N, 2D]: squares cancel least near the origin."""
    counts = mask.sum(1).clamp_min(1)[:, None, None]
    centre = mask[:, None].to(x.dtype) @ x / counts
    x = (x - centre).masked_fill_(~mask[..., None], 0)
    return centre, torch.cat([x, x.square()], -1)


def _iterate(
    rows: Tensor, mask: Tensor, start: Mixtures, lowest: Tensor, iterations: int, tol: float
) -> tuple[Mixtures, Tensor]:
    """EM on rows [J, N, 2D] from `_centre`.  Converged problems leave the batch, so the work shrinks."""
    share, quality = _expect(rows, mask, start)
    result, quality_before = Mixtures(*(t.clone() for t in start)), quality.clone()
    live = torch.arange(len(rows), device=rows.device)
    for _ in range(iterations):
        mixture = _maximise(rows, share, lowest)
        share, quality_now = _expect(rows, mask, mixture)
        for total, part in zip((*result, quality), (*mixture, quality_now), strict=True):
            total[live] = part
        moving = ((quality_now - quality_before).abs() >= tol).nonzero()[:, 0]
        quality_before = quality_now
        if len(moving) < len(live):
            live, rows, mask, share, lowest, quality_before = (
                t.index_select(0, moving) for t in (live, rows, mask, share, lowest, quality_before)
            )
        if not len(live):
            break
    return result, quality


def _expect(rows: Tensor, mask: Tensor, mixture: Mixtures) -> tuple[Tensor, Tensor]:
    """E step: responsibilities [J, n, N] (0 on padding) and the mean log-likelihood [J]: Eq. 5, one matrix product."""
    weights, means, variances = mixture
    precision, padding = variances.reciprocal(), ~mask[:, None]
    scale = (2 * math.pi * variances).log() + means.square() * precision  # [J, n, D]
    offset = weights.log() - scale.sum(-1) / 2  # [J, n]; -inf where a component is absent
    joint = torch.baddbmm(offset[..., None], torch.cat([means * precision, precision / -2], -1), rows.mT)
    peak = joint.amax(1, keepdim=True)
    share = joint.sub_(peak).exp_()  # log-sum-exp and softmax by hand: they share the exponentials
    total = share.sum(1, keepdim=True)
    density = (total.log() + peak).masked_fill(padding, 0)  # [J, 1, N]
    return share.div_(total).masked_fill_(padding, 0), density.sum((1, 2)) / mask.sum(1).clamp_min(1)


def _maximise(rows: Tensor, share: Tensor, lowest: Tensor) -> Mixtures:
    """M step: the best mixture for given responsibilities [J, n, N]: Eq. 6, both moments in one matrix product."""
    mass = share.sum(-1)  # [J, n]
    means, squares = (share @ rows / mass.clamp_min(_TINY)[..., None]).chunk(2, -1)
    variances = (squares - means.square()).maximum(lowest[:, None, None])
    return Mixtures(mass / mass.sum(-1, keepdim=True).clamp_min(_TINY), means, variances)


def sample(mixture: Mixtures, component_u: Tensor, normal: Tensor) -> Tensor:
    """Draw r rows from each of C mixtures, [C, r, D].  Client code, safe inside `vmap`.

    mixture  weights [C, L] (any positive scale), means and variances [C, L, D].
    component_u  [C, r] uniform in [0, 1), picks the component.     normal  [C, r, D] standard normal.
    Mask the rows of a class whose weights are all 0.  Source: the paper, Eq. 4 and section 4.2.
    """
    mass = mixture.weights.cumsum(-1)
    total = mass[..., -1:]
    picked = (mass[..., None, :] <= (component_u * total)[..., None]).sum(-1)  # [C, r]
    last = (mass < total).sum(-1, keepdim=True)  # the last component with weight: rounding must not go beyond it
    index = picked.minimum(last)[..., None].expand(normal.shape)
    return mixture.means.gather(-2, index) + mixture.variances.gather(-2, index).sqrt() * normal


def pooled(local: Mixtures, counts: Tensor) -> Mixtures:
    """One mixture per class from all clients' components, each weighted by the rows that it represents.

    local [K, C, n, …], counts [K, C]; weights [C, K n] that add up to the class's rows.
    """
    each = local._replace(weights=local.weights * counts[..., None])
    return Mixtures(*(t.transpose(0, 1).flatten(1, 2) for t in each))


def pack(mixture: Mixtures) -> Tensor:
    """The uploaded values of a component: its weight, mean and standard deviation.  [..., 1 + 2D]"""
    return torch.cat([mixture.weights[..., None], mixture.means, mixture.variances.sqrt()], -1)


def unpack(table: Tensor, present: Tensor | None = None) -> Mixtures:
    """The mixture that was packed, [..., 1 + 2D]; components that are not present [...] have weight 0."""
    weight, mean, deviation = table.split([1, table.shape[-1] // 2, table.shape[-1] // 2], -1)
    weight = weight.squeeze(-1)
    return Mixtures(weight if present is None else weight * present, mean, deviation**2)
