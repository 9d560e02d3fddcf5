"""Ditto: every client trains a personal model, regularized towards the global one, which is FedAvg's.

    down     w, the common model
    client   w_k <- w;  per batch one step of both models on   L + L'
             common   L  = CE(w_k)
             own      L' = CE(v_k) + λ/2 · |v_k - w|²,    w as it was received
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k;   v_k never leaves its client, and it is what predicts

Li et al., ICML 2021, arXiv:2012.04221, algorithm 1.  λ = 1 is the value in the scripts of the authors' code
(litian96/ditto at 26d9b29), except under attack, where theirs is 0.1.

Differs: the mean is weighted by rows.  The paper's and the code's (trainers_MTL/fedbase.py, line 139) is plain
(averaging="clients").

Details:

- Both models step on the same mini-batches, so both take the same number of steps in a round.  The paper leaves the own
  model's number of steps free, but its experiments do the same.
- The penalty covers trainable parameters, not running statistics.
- v_k and w start from the same values.
- body_lr_scale acts on the own model's body only.  The common model learns at the full rate.

The common model equals FedAvg's to the last bit.  λ = 0 is Local training next to FedAvg.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Batch, Model, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.trainables._two_models import TwoModels


@dataclass(frozen=True)
class Ditto(TwoModels):
    """Ditto as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    lam: float = hyper(
        1.0, 1e-3, 10.0, log=True, extra_values=(0.0,), symbol="λ", help="pull of the personal model towards the global"
    )

    presets = {"as_text": {"averaging": "clients"}, "as_published": {"averaging": "clients", "momentum": 0.0}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both models' losses: each moves its own model."""
        common = cross_entropy(self.common(m, batch.x), batch.y)
        own = cross_entropy(m.head(m.body(batch.x)), batch.y)
        distance = sum(((m[n] - down["shared"][f"common.{n}"]) ** 2).sum() for n in self.own(m))
        return common + own + self.lam / 2 * distance

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The predictions of the client's own model; those of the common model are logged too."""
        return {"own": m.head(m.body(x)), "common": self.common(m, x)}
