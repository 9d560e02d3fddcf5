"""FedLC: FedAvg whose clients calibrate their logits by how many rows of each class they have.

    down     w
    client   w_k <- w, local epochs on CE of the logits l_c - τ n_k,c^(-1/4),    n_k,c its rows of class c
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Zhang et al., ICML 2022, arXiv:2209.00189.  The paper was not at hand: this follows a description of it and PFLlib's and
FL-bench's codes.

The margin τ n^(-1/4) is larger for a class with fewer rows.  A class that the client does not hold is left out of the
softmax, so nothing pushes it down.  This is the limit n -> 0.  Predictions are not calibrated.

The codes and the paper do this otherwise:

- FL-bench takes at least n = 1e-8, which is almost the same.
- PFLlib counts the rows of all clients, so all clients have the same margins.  No option does this.
- In the paper, the sum in the loss also leaves out the row's own class.  Such a loss has no lower bound, and no code
  does this.

τ = 0 is FedAvg.  So is any τ where clients have equally many rows of every class.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, Batch, Model, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedLC(Algorithm):
    """FedLC as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

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
