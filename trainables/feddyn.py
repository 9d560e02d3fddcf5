"""FedDyn: dynamic regularization aligns the clients' local optima, round by round, with the global optimum.

    down     w
    client   w_k <- w, local epochs on   L = CE - g_k · w_k + α/2 · |w_k - w|²;    g_k <- g_k - α (w_k - w)
    up       w_k, n_k
    server   h <- h + m/K · mean_k (w_k - w),    m of the K clients took part
             w = mean_k w_k + h

Acar et al., ICLR 2021, arXiv:2111.04263, algorithm 1; its server's state is -α h.  Means are plain, over clients.  The
paper solves each client's problem; here it gets the local work.  Penalty and states run over trainable parameters:
the server takes the mean of BatchNorm's running statistics.  As α goes to 0 clients are FedAvg's, but not the server:
h adds all earlier moves to each, and where clients stop short of their optima it swings.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn as described in its module: hyperparameters, client and server code."""

    pure = True

    alpha_dyn: float = hyper(0.1, 1e-3, 10.0, log=True, symbol="α", help="weight of the dynamic regulariser")

    shared = ("body", "head")

    def init(self, task: Task) -> dict[str, Tree]:
        """Nothing has moved."""
        return {"moves": {n: torch.zeros(task.shapes[n]) for n in task.parameters}}

    def keep(self, task: Task) -> dict[str, Tree]:
        """Each client's g_k, the gradient of its own loss where it ended."""
        return {"gradient": self.init(task)["moves"]}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, the linear term by g_k, and the pull to the received model."""
        bent = sum((g * m[n]).sum() for n, g in batch.client.kept["gradient"].items())
        apart = sum(((m[n] - down["shared"][n]) ** 2).sum() for n in batch.client.kept["gradient"])
        return super().loss(m, batch, down) - bent + self.alpha_dyn / 2 * apart

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The client's state g_k after the round: g_k - α (w_k - w)."""
        old = data.client.kept["gradient"]
        return {"gradient": {n: g - self.alpha_dyn * (m[n] - down["shared"][n]) for n, g in old.items()}}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """The mean model, and beyond it by the sum of all moves."""
        mean, share = mean_over_clients(up["shared"], torch.ones_like(up["rows"])), len(up["ids"]) / task.clients
        moves = {n: h + share * (mean[n] - server["shared"][n]) for n, h in server["moves"].items()}
        return {"shared": mean | {n: mean[n] + h for n, h in moves.items()}, "moves": moves}
