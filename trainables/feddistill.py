"""FedDistill: clients of any architecture share their mean logits of every class, and nothing else.

    down     to client i: s_c, the mean of the logits l_k,c over the other clients k that ever sent logits of c
    client   local epochs on   L = CE + λ · 1/B Σ_b KL(softmax(s_y / τ) || softmax(logits / τ))
             a row whose class has no s adds 0, and still counts in B
    up       l_k,c the mean logits of class c at client k, for the classes that it has
    server   keeps the last l_k,c of each client, also of absent ones;   clients weigh equally

Jeong et al. 2018, arXiv:1811.11479 (federated distillation).  The paper was not at hand: this follows descriptions of
it and of PFLlib's, HtFLlib's and FedGen's codes.

Differs:

- The target is a distribution, with FedGen's softmax and KL.  PFLlib and HtFLlib compare the raw logits.
- A client's own logits are left out of its targets, as descriptions of the paper have it.  The codes average over all
  clients (leave_one_out=False).
- Clients send the trained model's mean logits over their rows.  The codes collect logits during training, while the
  model is moving (knowledge="running").
- The logits of clients that do not take part in a round are still used.
- KL is not multiplied by τ², as it often is in distillation.
- A client that lacks a class sends nothing for it.  In the codes it sends a vector of zeros, which no option
  reproduces.

At λ = 0 it is Local.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtune.core.trees import put, take
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Ragged, Task, hyper
from fedtune.nn.divergences import kl_rows
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, class_sums


@dataclass(frozen=True)
class FedDistill(Algorithm):
    """FedDistill as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    lam: float = hyper(
        1.0,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ",
        first_round=2,
        help="weight of the distillation loss",
    )
    temperature: float = hyper(
        1.0, 0.25, 10.0, log=True, symbol="τ", first_round=2, help="temperature of both softmaxes in KL"
    )
    leave_one_out: bool = hyper(True, first_round=2, help="leave a client's own logits out of its targets")
    knowledge: str = hyper(
        "final",
        choices=("final", "running"),
        first_round=2,
        help="class means taken with the trained model, or while it was training",
    )

    sends = ("targets",)

    def init(self, task: Task) -> dict:
        """No client has sent logits yet."""
        k, c = task.clients, task.classes
        return {"told": Ragged(torch.zeros(k, c, c), torch.zeros(k, c, dtype=torch.bool))}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Each client's mean over the (other) clients."""
        logits, present = server["told"]  # [K, C, C], [K, C]
        heard = present.expand(len(ids), *present.shape)  # [m, K, C]
        if self.leave_one_out:
            other = ids[:, None] != torch.arange(len(present), device=ids.device)
            heard = heard & other[:, :, None]
        n = heard.sum(1)  # [m, C]
        mean = torch.einsum("mkc,kcd->mcd", heard.to(logits), logits) / n.clamp(min=1)[:, :, None]
        return {"targets": Ragged(mean, n > 0)}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Nothing: a client predicts with its own model alone."""
        return {}

    def loss(self, m: Model, batch: Batch, down: dict) -> Any:
        """CE plus KL to the row's target; if clients send running means, also the sums behind them."""
        logits = m.head(m.body(batch.x))  # [B, C]
        loss = cross_entropy(logits, batch.y)
        targets, present = down["targets"]
        if self.lam:
            distance = kl_rows(targets[batch.y] / self.temperature, logits / self.temperature)  # [B]
            loss = loss + self.lam * (distance * present[batch.y]).mean()
        if self.knowledge == "final":
            return loss
        sums, counts = class_sums(logits.detach(), batch.y, torch.ones_like(batch.y, dtype=torch.bool), len(present))
        return loss, {"sums": sums, "counts": counts}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        """Mean logits of the classes that the client has, or has met in training."""
        if self.knowledge == "final":
            means, rows = class_means(m.head(m.body(data.x)), data.y, data.mask, down["targets"].present.shape[0])
        else:
            rows = data.tally["counts"]
            means = data.tally["sums"] / rows.clamp(min=1)[:, None]
        return {"logits": Ragged(means, rows > 0)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """Store the received logits; classes without new ones keep their old ones."""
        (logits, present), previous = up["logits"], take(server["told"], up["ids"])
        latest = Ragged(torch.where(present[:, :, None], logits, previous.values), present | previous.present)
        return server | {"told": put(server["told"], up["ids"], latest)}
