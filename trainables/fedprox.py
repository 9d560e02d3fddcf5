"""FedProx: FedAvg with a proximal term that keeps clients near the model they received.

    client   w_k <- w, local epochs on   L = CE + μ/2 · |w_k - w|²
    all else as FedAvg; μ = 0 is FedAvg

Li et al., MLSys 2020, arXiv:1812.06127, equation 2.

Differs: every client does the same local work.  In the paper, slow clients may do less.

The penalty covers trainable parameters, not running statistics.  "as_published" is FedProx as in FedGen's and FedPA's
tables: μ = 1, and weight decay.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.trainables._released import CLIENTS


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedProx as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"
    unlike_text = "every client does the same local work"

    mu: float = hyper(
        0.1, 1e-4, 1.0, log=True, extra_values=(0.0,), symbol="μ", help="weight of the proximal term; 0 is FedAvg"
    )

    shared = ("body", "head")
    presets = {"as_published": CLIENTS | {"mu": 1.0, "weight_decay": 1e-3}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the proximal term over all trainable parameters."""
        moving = [name for name, _ in m.net.named_parameters() if name in down["shared"]]  # not what is frozen
        distance = sum(((m[name] - down["shared"][name]) ** 2).sum() for name in moving)
        return super().loss(m, batch, down) + self.mu / 2 * distance
