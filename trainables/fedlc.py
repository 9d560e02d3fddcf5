"""FedLC: FedAvg whose clients calibrate their logits by how many rows of each class they have.

    down     w
    client   w_k <- w, local epochs on CE of the logits l_c - τ n_k,c^(-1/4),    n_k,c its rows of class c
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Zhang et al., ICML 2022, arXiv:2209.00189; not at hand: from its description and PFLlib's and FL-bench's codes.  A rare
class needs a larger margin.  A class that the client does not hold is left out of the softmax, the limit of n -> 0, so
nothing pushes it down (FL-bench: n >= 1e-8, almost the same; PFLlib: the rows of all clients, one margin for all, not
reproduced).  The paper also leaves a row's own class out of the sum, which has no lower bound; no code does.
Predictions are not calibrated.  τ = 0 is FedAvg, and so are clients with equally many rows of every class.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedLC(Algorithm):
    """FedLC as described in its module: hyperparameters, client and server code."""

    pure = True

    tau: float = hyper(
        1.0, 0.01, 10.0, log=True, extra_values=(0.0,), symbol="τ", help="strength of the calibration; 0 is FedAvg"
    )

    shared = ("body", "head")

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE of the calibrated logits."""
        logits = m.head(m.body(batch.x))
        if self.tau:
            logits = logits - self.tau * batch.client.counts.to(logits) ** -0.25
        return cross_entropy(logits, batch.y)
