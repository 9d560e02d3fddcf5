"""Linear heads: pooled Gaussians of features, training on a server, and a fixed head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pooled_moments(means: Tensor, covariances: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [C, D] and covariance [C, D, D] of each class, pooled from the clients' own.  Zero if there are too few
    rows.

    means [m, C, D], covariances [m, C, D, D] with divisor n - 1, counts [m, C].  Values of a client without rows of a
    class are not used.
    """
    n = counts.to(means)
    total = n.sum(0)
    mean = torch.einsum("mc,mcd->cd", n, means) / total.clamp(min=1)[:, None]
    apart = means - mean  # [m, C, D]
    scatter = torch.einsum("mc,mcde->cde", (n - 1).clamp(min=0), covariances)
    scatter = scatter + torch.einsum("mc,mcd,mce->cde", n, apart, apart)
    return mean, scatter / (total - 1).clamp(min=1)[:, None, None]


def moments(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [C, D], covariance [C, D, D] with divisor n - 1, and number of rows [C] of each class.  Client code.

    z [N, D], y [N], mask [N] bool.  Zero if a class has no row; the covariance is also zero for a single row.
    """
    member = (F.one_hot(y, classes) * mask[:, None]).to(z)  # [N, C]
    counts = member.sum(0)
    means = member.T @ z / counts.clamp(min=1)[:, None]
    apart = (z[:, None] - means) * member[..., None]  # [N, C, D]
    scatter = torch.einsum("ncd,nce->cde", apart, apart)
    return means, scatter / (counts - 1).clamp(min=1)[:, None, None], counts.long()


def descend(
    weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, epochs: int, batch: int, lr: float, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Plain SGD of a linear head on the cross-entropy of rows x [N, D], y [N], shuffled in each epoch."""
    weight, bias, wanted = weight.clone(), bias.clone(), F.one_hot(y, len(bias)).to(x)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=stream).to(x.device).split(batch):
            slope = (F.linear(x[rows], weight, bias).softmax(1) - wanted[rows]) / len(
                rows
            )  # [B, C], gradient of the logits
            weight -= lr * slope.T @ x[rows]
            bias -= lr * slope.sum(0)
    return weight, bias


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
