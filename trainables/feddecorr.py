"""FedDecorr: FedAvg whose clients decorrelate their features, which would otherwise collapse to few dimensions.

    down     w
    client   w_k <- w, local epochs on   L = CE + β · Σ_ij K_ij² / D²
             K [D, D] the correlations of the features z = body(x) over a mini-batch
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Shi et al., ICLR 2023, arXiv:2210.00226, there on top of FedAvg; from a description of the paper and its code
(bytedance/FedDecorr at 973e4af, loss.py).  As in the code, 1e-8 is added to every variance, so a feature that does not
vary correlates with nothing.  A mini-batch of one row has no second term.

scale="code" ("as_published") is the term of this code, which differs from the paper's in three ways:

- Entries of K are sums over the B rows, not divided by B - 1.
- The sum of their squares is divided by B.
- The diagonal is left out, and the mean is over the other D (D - 1) entries.

For the same correlations, this term is (B - 1)² / B times as large, about B times.  So the effect of β depends on the
batch.

β = 0 is FedAvg.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedDecorr(Algorithm):
    """FedDecorr as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    beta: float = hyper(
        0.1, 0.001, 10.0, log=True, extra_values=(0.0,), symbol="β", help="weight of the correlations; 0 is FedAvg"
    )
    scale: str = hyper("text", choices=("text", "code"), help="the term's scale: the paper's, or its code's")

    shared = ("body", "head")
    presets = {"as_published": {"scale": "code", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the features' squared correlations."""
        z = m.body(batch.x)
        loss = cross_entropy(m.head(z), batch.y)
        if not self.beta or len(z) == 1:
            return loss
        k2, rows, width = correlations(z).square(), *z.shape
        if self.scale == "text":
            return loss + self.beta * k2.mean()
        distance = (k2.sum() - k2.diagonal().sum()) / (width * (width - 1))
        return loss + self.beta * distance * (rows - 1) ** 2 / rows


def correlations(z: Tensor) -> Tensor:
    """Correlations [D, D] of features over the rows of z [B, D], B > 1; 0 where a feature does not vary."""
    z = z - z.mean(0)
    z = z / (z.var(0) + 1e-8).sqrt()
    return z.T @ z / (len(z) - 1)
