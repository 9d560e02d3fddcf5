"""FedAS: a client aligns the received body to its own features before training; Fisher information weighs the bodies.

    down     body
    client   body_k <- body;  from its second time on, epochs of plain SGD move body_k on
             Σ_c mean_b |z_b - p_k,c|² / D  over the mini-batch's rows b of class c,   z = body_k(x)
             then local epochs on CE over all;  p_k,c, the mean feature of class c, stays with the client
    up       body_k, n_k;  F_k = mean over rows of |∇ log p(y | x)|² over all trained parameters
    server   body = Σ_k F_k body_k / Σ_k F_k;   the head never leaves its client
    scored   after the alignment, which a client repeats with what it would receive now;  no later round sees it

Yang, Huang and Ye, CVPR 2024, "FedAS: Bridging inconsistency in personalized federated learning", from PFLlib (d832e76,
clientas.py, serveras.py, the authors').  Differs: p_k is of the end of its last round (there: of the same model, before
it receives); F_k is the trace per row (there: the sum over shuffled mini-batches of the mean gradient's square, which
grows with the rows); mini-batches of the alignment have the scenario's size (there 16).  PFLlib sends the head too, and
scores what a client trained last.  "as_published" is its plain SGD.
align_epochs=0 with weighing="rows" is FedPer.  A round has the gradient steps of the alignment beside FedAvg's, and the
gradient of every single row for F_k: about 2.2 and 3.7 times FedAvg's cost without and with F_k.
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

    align_epochs: int = hyper(1, 1, 10, extra_values=(0,), help="epochs of the alignment; 0: none")
    align_lr: float = hyper(0.01, 1e-4, 1.0, log=True, help="learning rate of the alignment")
    weighing: str = hyper("fisher", choices=("fisher", "rows"), help="weights of bodies in the mean")

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
        apart = row_distance(m.body(batch.x), protos[batch.y], "mse")  # [B]
        sums = apart[None] @ member  # [1, C]; a vector's product cannot be recorded under vmap
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
