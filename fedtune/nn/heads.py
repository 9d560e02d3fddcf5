"""Linear heads: pooled Gaussians of features, training on a server, a fixed head, and a margin of its angles."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.nn.layers import cross_entropy


def pooled_moments(means: Tensor, covariances: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [C, D] and covariance [C, D, D] of each class, pooled from the clients' own.  Zero of too few rows.

    means [m, C, D], covariances [m, C, D, D] with divisor n - 1, counts [m, C]; those of 0 rows are not used.
    """
    n = counts.to(means)
    total = n.sum(0)
    mean = torch.einsum("mc,mcd->cd", n, means) / total.clamp(min=1)[:, None]
    deviations = means - mean  # [m, C, D]
    scatter = torch.einsum("mc,mcde->cde", (n - 1).clamp(min=0), covariances)
    scatter = scatter + torch.einsum("mc,mcd,mce->cde", n, deviations, deviations)
    return mean, scatter / (total - 1).clamp(min=1)[:, None, None]


def moments(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C, D], covariance [C, D, D] with divisor n - 1, and number of rows [C] of each class.  Client code.

    z [N, D], y [N], mask [N] bool.  Zero if a class has no row; the covariance is also zero for a single row.
    """
    member = (F.one_hot(y, classes) * mask[:, None]).to(z)  # [N, C]
    counts = member.sum(0)
    means = member.T @ z / counts.clamp(min=1)[:, None]
    deviations = (z[:, None] - means) * member[..., None]  # [N, C, D]
    scatter = torch.einsum("ncd,nce->cde", deviations, deviations)
    return means, scatter / (counts - 1).clamp(min=1)[:, None, None], counts.long()


def upper(symmetric: Tensor) -> Tensor:
    """The upper triangles [..., D (D + 1) / 2] of symmetric matrices [..., D, D]: all that need be sent of them."""
    i, j = torch.triu_indices(*symmetric.shape[-2:], device=symmetric.device)
    return symmetric[..., i, j]


def symmetric(triangles: Tensor, width: int) -> Tensor:
    """The symmetric matrices [..., D, D] of upper triangles, for D = width."""
    i, j = torch.triu_indices(width, width, device=triangles.device)
    matrices = triangles.new_zeros(*triangles.shape[:-1], width, width)
    matrices[..., i, j] = matrices[..., j, i] = triangles
    return matrices


def roots(covariances: Tensor, floors: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors [C, D, D] of covariances [C, D, D] + floor · I, in double precision, and the floors used [C].

    A floor too small to factorise a covariance is raised tenfold until it is not; if that is no help, factors are NaN.
    """
    matrices, floors = covariances.double(), floors.double()
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    for _ in range(20):
        factors, failed = torch.linalg.cholesky_ex(matrices + floors[:, None, None] * eye)
        if not failed.any():
            return factors, floors
        floors = torch.where(failed > 0, 10 * floors, floors)
    return torch.where((failed > 0)[:, None, None], torch.nan, factors), floors


def descend(
    weight: Tensor,
    bias: Tensor,
    x: Tensor,
    y: Tensor,
    epochs: int,
    batch: int,
    lr: float,
    stream: torch.Generator,
    optimizer: str = "sgd",
) -> tuple[Tensor, Tensor]:
    """A linear head trained on the cross-entropy of rows x [N, D], y [N], shuffled in each epoch.

    optimizer: sgd, plain; or adamw, torch.optim's with its defaults.
    """
    tensors, targets, steps = [weight.clone(), bias.clone()], F.one_hot(y, len(bias)).to(x), 0
    means, squares = ([torch.zeros_like(t) for t in tensors] for _ in range(2))
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=stream).to(x.device).split(batch):
            slope = (F.linear(x[rows], *tensors).softmax(1) - targets[rows]) / len(rows)  # of the logits, [B, C]
            steps += 1
            for t, grad, mean, square in zip(tensors, (slope.T @ x[rows], slope.sum(0)), means, squares, strict=True):
                if optimizer == "sgd":
                    t -= lr * grad
                    continue
                t *= 1 - lr * 0.01  # torch.optim's first use takes a second (engine/optimizers.py)
                mean.lerp_(grad, 1 - 0.9)
                square.mul_(0.999).addcmul_(grad, grad, value=1 - 0.999)
                spread = square.sqrt() / (1 - 0.999**steps) ** 0.5 + 1e-8
                t.addcdiv_(mean, spread, value=-lr / (1 - 0.9**steps))
    return tensors[0], tensors[1]


class Frame(nn.Module):
    """A fixed classifier: scores are inner products with the frame's columns."""

    columns: Tensor

    def __init__(self, frame: Tensor) -> None:
        """Store the frame [D, C], which is never trained."""
        super().__init__()
        self.register_buffer("columns", frame)

    def forward(self, h: Tensor) -> Tensor:
        """Inner products of h [B, D] with the frame's columns, [B, C]."""
        return h @ self.columns


def arcface(cosines: Tensor, y: Tensor, scale: float, margin: float) -> Tensor:
    """CE of scaled cosines [B, C], where a row's own angle counts as larger by the margin, in radians; y [B].

    Source: Deng et al. (ArcFace), CVPR 2019, equation 3.
    """
    own = F.one_hot(y, cosines.shape[1]).bool()
    sines = (1 - cosines.square()).clamp(min=1e-12).sqrt()
    enlarged = cosines * math.cos(margin) - sines * math.sin(margin)
    return cross_entropy(scale * torch.where(own, enlarged, cosines), y)


class Offset(nn.Module):
    """A trained offset of features, and a running mean of the features that training meets."""

    running: Tensor

    def __init__(self, features: int, momentum: float) -> None:
        """Both begin at 0; momentum is the weight of the newest batch in the running mean."""
        super().__init__()
        self.offset, self.momentum = nn.Parameter(torch.zeros(features)), momentum
        self.register_buffer("running", torch.zeros(features))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The offset [D], and the running mean [D] with the batch z [B, D] in it; gradients pass through this batch."""
        mean = (1 - self.momentum) * self.running + self.momentum * z.mean(0)
        if self.training:
            self.running = mean.detach()
        return self.offset, mean
