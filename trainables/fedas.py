"""FedAS: a client aligns the received body to its own features before training; Fisher information weighs the bodies.

    down     body
    client   body_k <- body;  if it took part before, epochs of plain SGD first align body_k, on the loss
             Σ_c mean_b |z_b - p_k,c|² / D  over the mini-batch's rows b of class c,   z = body_k(x)
             then local epochs on CE over all;  p_k,c, the mean feature of class c, stays with the client
    up       body_k, n_k;  F_k = mean over rows of |∇ log p(y | x)|² over all trained parameters
    server   body = Σ_k F_k body_k / Σ_k F_k;   the head never leaves its client
    scored   after the alignment, which a client repeats with what it would receive now;  no later round sees it

Yang, Huang and Ye, CVPR 2024, "FedAS: Bridging inconsistency in personalized federated learning".  The paper was not at
hand: this follows PFLlib's version, by the authors (d832e76: clientas.py, serveras.py), whose plain SGD is
"as_published".

Differs from PFLlib:

- F_k is a mean over rows of the squared gradient of each row.  PFLlib sums the squared mean gradients of shuffled
  mini-batches, and this sum grows with the number of rows.
- A client computes p_k,c when its round ends.  PFLlib computes it from the same model, but later, before the client
  receives the next body.
- The alignment's mini-batches have the scenario's size.  PFLlib's have 16 rows.
- Heads are never sent.  PFLlib sends them.
- Clients are scored after the alignment.  PFLlib scores the models that they last trained.

align_epochs=0 with weighing="rows" is FedPer.  A round costs about 2.2 times FedAvg's with the alignment, and 3.7 times
with F_k too, for which a client computes the gradient of every single row.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core.trees import Tree, mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Task, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, row_distance

AT_ONCE = 2**21  # numbers of gradients of several rows that a client holds at once


@dataclass(frozen=True)
class FedAS(Algorithm):
    """FedAS as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    align_epochs: int = hyper(1, 1, 10, extra_values=(0,), help="epochs of the alignment; 0: none")
    align_lr: float = hyper(0.01, 1e-4, 1.0, log=True, help="learning rate of the alignment")
    weighing: str = hyper(
        "fisher", choices=("fisher", "rows"), help="weight of a client's body in the mean: F_k, or its rows"
    )

    shared = ("body",)
    presets = {"as_published": {"momentum": 0.0}}

    def keep(self, task: Task) -> dict[str, Tree]:
        """No prototypes yet."""
        return {"protos": torch.zeros(task.classes, task.features), "seen": torch.zeros(())}

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """Prototypes of the trained body."""
        protos, _ = class_means(m.body(data.x), data.y, data.mask, len(data.client.counts))
        return {"protos": protos, "seen": torch.ones_like(m.kept["seen"])}

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """The alignment; nobody has prototypes in round 1."""
        align = Phase(self.aligned, ("body",), epochs=self.align_epochs, lr=self.align_lr, plain=True)
        return (align,) if self.align_epochs and task.t > 1 else ()

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Align, then train."""
        return (*self.adapt(task), *super().phases(task))

    def aligned(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """Distance to the own prototypes, class by class."""
        protos = m.kept["protos"]
        member = F.one_hot(batch.y, len(protos)).to(protos)  # [B, C]
        distance = row_distance(m.body(batch.x), protos[batch.y], "mse")  # [B]
        sums = distance[None] @ member  # [1, C]; a vector's product cannot be recorded under vmap
        return m.kept["seen"] * (sums / member.sum(0).clamp(min=1)).sum()

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The Fisher information."""
        if self.weighing == "rows":
            return {}
        names = [n for n, _ in m.net.named_parameters() if n in down["shared"] or n.startswith("head.")]

        def square(x: Tensor, y: Tensor) -> Tensor:
            g = m.gradient(lambda at: cross_entropy(at.head(at.body(x[None])), y[None]), names)
            return torch.stack([t.square().sum() for t in g.values()]).sum()

        block = max(1, AT_ONCE // sum(m[n].numel() for n in names))
        squares = [torch.vmap(square)(*rows) for rows in zip(data.x.split(block), data.y.split(block), strict=True)]
        return {"fisher": (torch.cat(squares) * data.mask).sum() / data.mask.sum()}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """The mean body by Fisher information; if nobody has any, the plain one."""
        if self.weighing == "rows":
            return super().aggregate(server, up, task)
        weight = torch.where(up["fisher"].sum() > 0, up["fisher"], 1.0)
        return server | {"shared": mean_over_clients(up["shared"], weight)}
