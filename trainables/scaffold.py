"""SCAFFOLD: clients correct their gradients by control variates, against client drift.

    down     w, c
    client   w_k <- w;  each step on   L = CE + (c - c_k) · w_k,   so that its gradient is g_k - c_k + c
             c_k⁺ = c_k - c + (w - w_k) / (η S)     after S steps
    up       w_k, n_k, c_k⁺ - c_k
    server   w <- w + η_g · mean_k (w_k - w)
             c <- c + m/K · mean_k (c_k⁺ - c_k),    m of the K clients took part

Karimireddy et al., ICML 2020, arXiv:1910.06378, algorithm 1 with option II.  Means are plain, over clients.  The
paper's clients run plain SGD ("as_text").  No code of its authors is known.

η S stands for the distance that S steps cover along a constant gradient of norm one.  For plain SGD this is the product
of η and S.  It is another number with momentum, as in our scenarios, or with factors on the learning rate of some
parts.  In all these cases c_k⁺ is a mean of the round's gradients.  Under Adam, clipping or weight decay it is no such
mean.

The server takes the mean of BatchNorm's running statistics, because they are no parameters.  With a single client, or
in round 1, c = c_k, and the steps are FedAvg's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, mean_over_clients, tree_map
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper, part_of


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    server_lr: float = hyper(
        1.0, 0.1, 2.0, log=True, symbol="η_g", help="the server's learning rate on the mean update"
    )

    shared = ("body", "head")
    sends = ("control",)
    presets = {"as_text": {"momentum": 0.0}}

    def init(self, task: Task) -> dict[str, Tree]:
        """No control variate yet."""
        return {"control": {n: torch.zeros(task.shapes[n]) for n in task.parameters}}

    def keep(self, task: Task) -> dict[str, Tree]:
        """Each client's own c_k."""
        return self.init(task)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, and a term whose gradient is c - c_k."""
        mine = batch.client.kept["control"]
        drift = sum(((c - mine[n]) * m[n]).sum() for n, c in down["control"].items())
        return super().loss(m, batch, down) + drift

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """c_k⁺, a mean of the round's gradients."""
        # who has not stepped has not moved either: 0 / 1
        path, mine = {p: torch.where(s > 0, s, 1) for p, s in data.client.path.items()}, data.client.kept["control"]
        moved = {n: (down["shared"][n] - m[n]) / path[part_of(n)] for n in mine}
        return {"control": {n: mine[n] - c + moved[n] for n, c in down["control"].items()}}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """By how much c_k moved."""
        return tree_map(torch.sub, self.remember(m, data, down), data.client.kept)

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """A step along the clients' mean update, and the mean of all clients' c_k."""
        equal_weights = torch.ones_like(up["rows"])
        mean, control = mean_over_clients(up["shared"], equal_weights), mean_over_clients(up["control"], equal_weights)
        stepped = {n: w + self.server_lr * (mean[n] - w) for n, w in server["shared"].items() if n in control}
        share = len(up["ids"]) / task.clients
        return {
            "shared": mean | stepped,
            "control": tree_map(lambda c, d: c + share * d, server["control"], control),
        }
