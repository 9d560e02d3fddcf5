"""FedNTD: FedAvg whose clients distill what the received model predicts for all classes but a row's own.

    down     w
    client   w_k <- w, local epochs on   L = CE + β τ² · mean_b KL(q̃_w || q̃)
             q̃  the softmax of the logits / τ over all classes but the row's own;  q̃_w the received model's, fixed
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Lee et al., NeurIPS 2022, arXiv:2106.03097, equations 4 to 7, and its code (Lee-Gihun/FedNTD).  The factor τ² is in the
code only.  It makes no difference at the code's τ = 1.

The received model predicts as in an evaluation, with its running statistics.  "as_published" has the optimiser of the
code's configuration.  β = 0 is FedAvg.  So is a single step a round, because both models agree before it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedNTD(Algorithm):
    """FedNTD as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    beta: float = hyper(
        1.0, 0.01, 10.0, log=True, extra_values=(0.0,), symbol="β", help="weight of the distillation; 0 is FedAvg"
    )
    tau: float = hyper(1.0, 0.5, 10.0, log=True, symbol="τ", help="temperature of the distillation")

    shared = ("body", "head")
    presets = {"as_published": {"lr": 0.01, "lr_decay": 0.99, "momentum": 0.9, "weight_decay": 1e-5}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the divergence from the received model over the classes that rows are not of."""
        logits = m.head(m.body(batch.x))
        loss = cross_entropy(logits, batch.y)
        if not self.beta:
            return loss
        received = m.still(down["shared"])
        log_p = not_true(received.head(received.body(batch.x)) / self.tau, batch.y)
        distance = log_p.exp() * (log_p - not_true(logits / self.tau, batch.y))
        return loss + self.beta * self.tau**2 * distance.sum(1).mean()


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """Log-probabilities [B, C] of the classes that rows are not of, among these; 0 at the own one.

    logits [B, C], y [B].
    """
    own = F.one_hot(y, logits.shape[1]).bool()
    return logits.masked_fill(own, -torch.inf).log_softmax(1).masked_fill(own, 0.0)
