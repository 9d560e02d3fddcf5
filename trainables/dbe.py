"""DBE: FedAvg whose clients shift features by an offset of their own, so that the common body need not be biased.

    down     w;  after round 1 also g, the mean feature of all
    client   w_k <- w;  local epochs on   L = CE(head(z + o_k), y) + κ/2 · |r - g|² / D,    z = body(x)
             r <- (1 - ρ) r + ρ · (the batch's mean z), from 0 in every round;  o_k moves along, from 0
             round 1 has neither the offset nor the second term
    up       w_k, n_k;  in round 1 also r_k, as it ended
    server   w = Σ_k n_k w_k / Σ_k n_k;   once, after round 1:  g = Σ_k n_k r_k / Σ_k n_k
             o_k never leaves its client;  head(z + o_k) predicts

Zhang et al., NeurIPS 2023, arXiv:2311.14975, there on top of FedAvg; and the authors' code (TsingZ0/DBE; PFLlib calls
it FedDBE).  κ and ρ have the code's values for its CNN.

Differs: the code first trains all clients once to get g, and discards that training.  Here g comes from round 1 and its
participants.

With κ = 0 and offset_rate=0 it is FedAvg, because offsets stay at 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtune.core.trees import Tree, mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Ragged, Task, hyper
from fedtune.nn.heads import Offset
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class DBE(Algorithm):
    """DBE as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    kappa: float = hyper(
        50.0,
        0.1,
        100.0,
        log=True,
        extra_values=(0.0,),
        symbol="κ",
        first_round=2,
        help="weight of the distance between mean features",
    )
    mean_momentum: float = hyper(
        1.0, 0.05, 1.0, symbol="ρ", first_round=2, help="weight of the newest batch in the mean feature"
    )
    offset_rate: float = hyper(
        1.0, 0.1, 10.0, log=True, extra_values=(0.0,), first_round=2, help="factor on lr for the offset; 0: none"
    )

    shared = ("body", "head")
    sends = ("mean",)
    scored_model = "the averaged model with each client's own offset of features"
    contrasts = {"mean_momentum": (0.1, 1.0, {"batch": 4})}
    presets = {"as_published": {"momentum": 0.0, "batch_norm": "personal"}}

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the offset."""
        net.add_module("offset", Offset(task.features, self.mean_momentum))
        return net

    def init(self, task: Task) -> dict[str, Tree]:
        """No mean feature is known yet."""
        return {"mean": Ragged(torch.zeros(1, task.features), torch.zeros(1, dtype=torch.bool))}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Everything at once, from a mean feature of 0."""
        return (Phase(self.loss, lr_scale={"offset": self.offset_rate}, begin=self.restarted),)

    def restarted(self, m: Model, down: dict) -> dict[str, Tensor]:
        """The running mean at 0."""
        return {"offset.running": torch.zeros_like(m["offset.running"])}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE of shifted features, and the distance between the mean features; in round 1 CE alone."""
        z, (g, consensus) = m.body(batch.x), down["mean"]
        offset, mean = m.part("offset")(z)
        distance = (mean - g[0]).square().mean()
        return cross_entropy(m.head(z + consensus * offset), batch.y) + self.kappa / 2 * (consensus * distance).sum()

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The mean feature, as long as the server has none."""
        return {"mean": Ragged(m["offset.running"][None], ~down["mean"].present)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """FedAvg; and once the mean feature of all."""
        state = super().aggregate(server, up, task)
        if server["mean"].present.any():
            return state
        return state | {"mean": Ragged(mean_over_clients(up["mean"].values, up["rows"]), up["mean"].present[0])}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        """The common model on shifted features."""
        return m.head(m.body(x) + m["offset.offset"])
