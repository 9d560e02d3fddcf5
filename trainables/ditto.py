"""Ditto: every client trains a personal model, regularized towards the global one, which is FedAvg's.

    down     w, the common model
    client   w_k <- w;  per batch one step of both models on   L + L'
             common   L  = CE(w_k)
             own      L' = CE(v_k) + λ/2 · |v_k - w|²,    w as it was received
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k;   v_k never leaves its client, and it is what predicts

Li et al., ICML 2021, arXiv:2012.04221, algorithm 1.  Differs: the mean is by rows; the paper's and its code's is plain
(litian96/ditto at 26d9b29, trainers_MTL/fedbase.py, line 139), which is averaging="clients".  λ = 1 is its scripts'
value (under attack 0.1).  Both models step on the same batches, so the own one's s steps are the round's (the paper
lets s be chosen; its experiments do the same).  The penalty runs over trainable parameters, not over running
statistics.  Both start from the same values.  The common model is FedAvg's bit for bit; λ = 0 is Local training next to
FedAvg.  body_lr_scale acts on the own model; the common one learns at the full rate.
"""

from dataclasses import dataclass

from torch import Tensor

from fedtune.experiment.algorithm import Batch, Model, hyper
from fedtune.nn.layers import cross_entropy
from trainables._two_models import TwoModels


@dataclass(frozen=True)
class Ditto(TwoModels):
    """Ditto as described in its module: hyperparameters, client and server code."""

    pure = True

    lam: float = hyper(
        1.0, 1e-3, 10.0, log=True, extra_values=(0.0,), symbol="λ", help="pull of the personal model towards the global"
    )

    presets = {"as_text": {"averaging": "clients"}, "as_published": {"averaging": "clients", "momentum": 0.0}}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both models' losses: each moves its own model."""
        common = cross_entropy(self.common(m, batch.x), batch.y)
        own = cross_entropy(m.head(m.body(batch.x)), batch.y)
        apart = sum(((m[n] - down["shared"][f"common.{n}"]) ** 2).sum() for n in self.own(m))
        return common + own + self.lam / 2 * apart

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """The predictions of the client's own model; those of the common model are logged too."""
        return {"own": m.head(m.body(x)), "common": self.common(m, x)}
