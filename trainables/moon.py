"""MOON: FedAvg with a contrastive term: features near the received model's, and away from the client's last model's.

    down     w
    client   w_k <- w, local epochs on   L = CE + μ · mean_b ln(1 + exp((cos(z, z') - cos(z, z_w)) / τ))
             z = proj(body(x)), which the head reads;  z_w, z' the received and the client's last model's, both fixed
             keeps body and proj as it ends with them;  in its first round there is no last model and no second term
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Li, He and Song, CVPR 2021, arXiv:2103.16257, equation 3, whose -ln of a softmax over two is written out above.  proj is
two linear layers with a ReLU between them, as in its code (QinbinLi/MOON at 8fcba3c, model.py, lines 562 to 563;
main.py).  Fixed models predict as in an evaluation, with their running statistics.

Differs:

- z is as wide as the features.  In the code it has 256 numbers.
- In a client's first round there is no second term.  In the paper, the last model is then the common start.

projection=False leaves proj out, as PFLlib does.  Cosines are then between 0 and 1 if the features come out of a ReLU.
Without the projection, μ = 0 is FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper, part_of
from fedtune.nn.layers import Linear, cross_entropy


@dataclass(frozen=True)
class MOON(Algorithm):
    """MOON as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    mu: float = hyper(
        1.0,
        0.01,
        20.0,
        log=True,
        extra_values=(0.0,),
        symbol="μ",
        first_round=2,
        help="weight of the contrastive loss; 0 is FedAvg",
    )
    temperature: float = hyper(
        0.5, 0.1, 5.0, log=True, symbol="τ", first_round=2, help="temperature of the contrastive loss"
    )

    projection: bool = hyper(True, help="two more layers between body and head")

    structural = ("projection",)
    unlike_text = "the projection is as wide as the features, not 256"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **dict.fromkeys(("as_text", "as_published"), {"momentum": 0.9, "weight_decay": 1e-5}),
        "pfllib": {"projection": False, "momentum": 0.0},
    }

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The whole model."""
        return ("body", "proj", "head") if self.projection else ("body", "head")

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the projection."""
        if self.projection:
            width = task.features
            net.add_module("proj", nn.Sequential(Linear(width, width), nn.ReLU(), Linear(width, width)))
        return net

    def features(self, m: Model, x: Tensor) -> Tensor:
        """z [B, D]: what is contrasted, and what the head reads."""
        return m.part("proj")(m.body(x)) if self.projection else m.body(x)

    def keep(self, task: Task) -> dict[str, Tree]:
        """The layers before the head as it ended with them, and whether it did yet."""
        before = [n for n in task.shapes if part_of(n) != "head" and not n.endswith("num_batches_tracked")]
        return {"last": {n: torch.zeros(task.shapes[n]) for n in before}, "seen": torch.zeros(())}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the contrast of two models' features."""
        z, state = self.features(m, batch.x), batch.client.kept
        loss = cross_entropy(m.head(z), batch.y)
        if not self.mu:
            return loss
        to_global = F.cosine_similarity(z, self.features(m.still(down["shared"]), batch.x))  # [B]
        to_last = F.cosine_similarity(z, self.features(m.still(state["last"]), batch.x))
        return loss + self.mu * state["seen"] * F.softplus((to_last - to_global) / self.temperature).mean()

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The layers before the head as they were trained."""
        state = data.client.kept
        return {"last": {n: m[n] for n in state["last"]}, "seen": torch.ones_like(state["seen"])}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        """The head's scores of the projection."""
        return m.head(self.features(m, x))
