"""FedFA: one anchor per class in feature space aligns the features and calibrates the head.

    down     w and the anchors a_1 … a_C, fixed until the round's end
    client   per batch, in this order
             1. a step of w on   CE(head(z), y) + λ/C · Σ_{c in the batch} mean_{j: y_j = c} |z_j - a_c|²,   z = body(x)
             2. a step of the head alone, by Adam, on   1/C Σ_{c = 1 … C} CE(head(a_c), c),   absent classes too
    up       w_k, and   a_k,c = m a_c + (1 - m) · the mean of z over the rows of c that it trained on
             z as step 1 computed it, before it moved the body;   a_k,c = a_c if it met no row of c
    server   w = Σ_k n_k w_k / Σ_k n_k,   a_c = Σ_k n_k a_k,c / Σ_k n_k
    start    the anchors are C different rows of the identity, picked at random;  if C > D, random unit vectors

Zhou et al., arXiv:2211.09299.  The paper was not at hand: this follows a description of its code (TailinZhou/FedFA).

Differs from this code:

- A class's mean is over all rows of the class.  The code sums each batch's class means and divides by the number of all
  batches.  Batches without the class then shrink the mean.
- Anchors move once a round, by the features of all its passes together.  In the code they move once a pass.
- A client counts as holding a class if it trained on the class in the round.
- Adam restarts every round, and its rate is constant.

As in the code, |.|² is a sum over features, and the head predicts.  There is no preset, because the code's local
epochs, learning-rate decay and weight decay were not at hand.  Without the pull (λ = 0) and without step 2 (head_lr=0)
it is FedAvg.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.trees import mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Step, Task, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_sums


@dataclass(frozen=True)
class FedFA(Algorithm):
    """FedFA as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    lam: float = hyper(
        0.1, 1e-3, 10.0, log=True, extra_values=(0.0,), symbol="λ", help="weight of the pull to the anchors"
    )
    m: float = hyper(0.5, 0.0, 1.0, symbol="m", first_round=2, help="momentum of the anchors; 1: fixed")
    head_lr: float = hyper(
        1e-3,
        1e-4,
        0.1,
        log=True,
        extra_values=(0.0,),
        help="learning rate of the head's calibration on anchors; 0: none",
    )

    shared = ("body", "head")
    sends = ("anchors",)

    def init(self, task: Task) -> dict:
        """The first anchors: distinct unit vectors."""
        stream, (c, d) = randomness.stream(task.seed, "anchors"), (task.classes, task.features)
        if c <= d:
            return {"anchors": torch.eye(d)[torch.randperm(d, generator=stream)[:c]]}
        return {"anchors": F.normalize(torch.randn(c, d, generator=stream, dtype=torch.float64))}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """One phase with two steps on every batch: the model, then the head alone."""
        calibrate = Step(self.calibrate, ("head",), "adam", self.head_lr)
        return (Phase(self.loss, after=calibrate if self.head_lr else None),)

    def loss(self, m: Model, batch: Batch, down: dict) -> tuple[Tensor, dict]:  # type: ignore[override]
        """CE and the pull to the anchors, and the sums behind the means of z."""
        z, a = m.body(batch.x), down["anchors"]  # [B, D], [C, D]
        loss = cross_entropy(m.head(z), batch.y)
        sums, counts = class_sums(z.detach(), batch.y, torch.ones_like(batch.y, dtype=torch.bool), len(a))
        if self.lam:
            distance = ((z - a[batch.y]) ** 2).sum(1)  # [B]
            loss = loss + self.lam / len(a) * (distance / counts[batch.y]).sum()
        return loss, {"sums": sums, "counts": counts}

    def calibrate(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The head's loss on all anchors."""
        a = down["anchors"]
        return cross_entropy(m.head(a), torch.arange(len(a), device=a.device))

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """The anchors moved towards the means of what was met in training."""
        sums, met = data.tally["sums"], data.tally["counts"]
        moved = self.m * down["anchors"] + (1 - self.m) * sums / met.clamp(min=1)[:, None]
        return {"anchors": torch.where((met > 0)[:, None], moved, down["anchors"])}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Means over rows, of models and of anchors."""
        return super().aggregate(server, up, task) | {"anchors": mean_over_clients(up["anchors"], up["rows"])}
