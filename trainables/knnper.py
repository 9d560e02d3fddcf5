"""kNN-Per: FedAvg whose predictions mix in a vote of the client's own rows, the nearest by the model's features.

    down, client, up, server     as FedAvg
    scored   z = body(x) under the received model, and z_i likewise of the client's training rows
             q_c ∝ Σ_i exp(-|z - z_i|) over those of the k rows nearest to z that are of class c
             λ q + (1 - λ) softmax(head(z)) predicts

Marfoq et al., ICML 2022, arXiv:2111.09360, from a description of the paper and its code (omarfoq/knn-per at ee17520,
client.py).

Differs:

- All clients have the same λ.  In the paper each client takes the λ that is best on its validation rows.
- Every round is scored.  The paper scores the last one only.
- A client memorises at most `capacity` rows, spread evenly over its rows.  The code draws them at random.

"as_published" has two things of the code.  A neighbour weighs exp(-|z - z_i|² / D).  And λ mixes q with logits instead
of probabilities, because the code's switch for logits is always on.

λ = 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.experiment.algorithm import Algorithm, Data, Model, Phase, Task, hyper
from fedtune.nn.prototypes import pairwise_distance


@dataclass(frozen=True)
class KNNPer(Algorithm):
    """kNN-Per as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    lam: float = hyper(0.5, 0.0, 1.0, symbol="λ", help="weight of the neighbours; 0 is FedAvg")
    neighbours: int = hyper(10, 1, 100, log=True, symbol="k", help="nearest rows that vote")
    kernel: str = hyper("distance", choices=("distance", "square"), help="a neighbour's weight: exp(-d), or exp(-d²/D)")
    mixed: str = hyper("probabilities", choices=("probabilities", "logits"), help="scores of the model that are mixed")
    capacity: int = hyper(512, 1, 4096, log=True, help="rows that a client memorises")

    shared = ("body", "head")
    structural = ("capacity",)
    scored_model = "the averaged model, mixed with the nearest of each client's own rows"
    presets = {"as_published": {"kernel": "square", "mixed": "logits"}}

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the memory, empty: features of rows, and their classes one-hot, 0 where there is no row."""
        memory = nn.Module()
        memory.register_buffer("features", torch.zeros(self.capacity, task.features))
        memory.register_buffer("classes", torch.zeros(self.capacity, task.classes))
        net.add_module("memory", memory)
        return net

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """Memorise the training rows."""
        return (Phase(self.loss, steps=0, read=self.memorised),) if self.lam else ()

    def memorised(self, m: Model, data: Data, down: dict) -> dict[str, Tensor]:
        """Rows 0, n / capacity, 2 n / capacity, …; all, if they are no more than the capacity."""
        n, places = data.mask.sum(), torch.arange(self.capacity, device=data.y.device)
        at = (places * n.clamp(min=self.capacity) // self.capacity).clamp(max=len(data.y) - 1)
        classes = F.one_hot(data.y[at], m["memory.classes"].shape[1]) * (places < n)[:, None]
        return {"memory.features": m.body(data.x)[at], "memory.classes": classes.to(m["memory.classes"])}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        """The model and the neighbours, mixed."""
        z = m.body(x)
        logits = m.head(z)
        if not self.lam:
            return logits
        neighbour_scores = self.neighbours_say(z, m["memory.features"], m["memory.classes"])
        if self.mixed == "logits":
            return self.lam * neighbour_scores + (1 - self.lam) * logits
        return (self.lam * neighbour_scores + (1 - self.lam) * logits.softmax(1)).clamp(min=1e-30).log()

    def neighbours_say(self, z: Tensor, features: Tensor, classes: Tensor) -> Tensor:
        """Probabilities [B, C] of the nearest rows' classes; 0 if there is no row.

        z [B, D]; features [N, D] and classes [N, C], one-hot, 0 where there is no row.
        """
        d = pairwise_distance(z, features).masked_fill(~classes.any(1), 1e15)
        d, nearest = d.topk(min(self.neighbours, len(features)), largest=False)
        if self.kernel == "square":
            d = d.square() / z.shape[1]
        weights = (d[:, :1] - d).exp()[..., None] * classes[nearest]  # relative to the nearest: none underflows
        return weights.sum(1) / weights.sum((1, 2)).clamp(min=1e-30)[:, None]
