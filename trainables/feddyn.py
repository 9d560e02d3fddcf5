"""FedDyn: dynamic regularization aligns the clients' local optima, round by round, with the global optimum.

    down     w
    client   w_k <- w, local epochs on   L = CE - g_k · w_k + α/2 · |w_k - w|²;    g_k <- g_k - α (w_k - w)
    up       w_k, n_k
    server   h <- h + m/K · mean_k (w_k - w),    m of the K clients took part
             w = mean_k w_k + h
    scored   w;  mean_k w_k is logged as "averaged";  with scored="averaged", that mean is scored, and w is logged

Acar et al., ICLR 2021, arXiv:2111.04263, algorithm 1.  The paper's server state is -α h.  Means are plain, over
clients.

Differs from the paper: clients do the scenario's local work, where the paper solves each client's problem.

"as_published" has the values of the authors' code (alpemreacar/FedDyn at 48a19fa, utils_methods.py, lines 286 to 430).
Like the code, it trains on w, but scores the mean of the round's clients.  It clips gradients at 10 and decays weights
by 1e-3.  Not reproduced of the code:

- It clips the gradient before the penalty's is added.  Here the sum is clipped.
- It divides α by n_k / (mean n).
- It also scores the mean of all clients' last models, which the server here does not have.

The penalty and the states g_k and h cover trainable parameters.  The server takes the mean of BatchNorm's running
statistics.

α = 0 would not be FedAvg.  As α goes to 0, the clients train like FedAvg's, but the server still adds h, the sum of
earlier updates, to each mean.  This oscillates if clients stop short of their optima.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, mean_over_clients, to_all
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    alpha_dyn: float = hyper(0.1, 1e-3, 10.0, log=True, symbol="α", help="weight of the dynamic regulariser")

    scored: str = hyper(
        "server", choices=("server", "averaged"), help="the model that is scored: w, or the clients' mean"
    )

    shared = ("body", "head")
    unlike_text = "clients take local steps instead of solving their problems"
    presets = {
        "as_text": {"momentum": 0.0},
        "as_published": {
            "scored": "averaged",
            "alpha_dyn": 0.01,
            "clip_norm": 10.0,
            "weight_decay": 1e-3,
            "momentum": 0.0,
        },
    }

    def init(self, task: Task) -> dict[str, Tree]:
        """Nothing has moved."""
        return {"moves": {n: torch.zeros(task.shapes[n]) for n in task.parameters}}

    def keep(self, task: Task) -> dict[str, Tree]:
        """Each client's g_k, the gradient of its own loss where it ended."""
        return {"gradient": self.init(task)["moves"]}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, the linear term by g_k, and the pull to the received model."""
        bent = sum((g * m[n]).sum() for n, g in batch.client.kept["gradient"].items())
        distance = sum(((m[n] - down["shared"][n]) ** 2).sum() for n in batch.client.kept["gradient"])
        return super().loss(m, batch, down) - bent + self.alpha_dyn / 2 * distance

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The client's state g_k after the round: g_k - α (w_k - w)."""
        gradient = data.client.kept["gradient"]
        return {"gradient": {n: g - self.alpha_dyn * (m[n] - down["shared"][n]) for n, g in gradient.items()}}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """The mean model, and beyond it by the sum of all moves."""
        mean, share = mean_over_clients(up["shared"], torch.ones_like(up["rows"])), task.taking_part / task.clients
        moves = {n: h + share * (mean[n] - server["shared"][n]) for n, h in server["moves"].items()}
        return {"shared": mean | {n: mean[n] + h for n, h in moves.items()}, "averaged": mean, "moves": moves}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The server's model, and the round's mean."""
        return to_all({n: server[n] for n in ("shared", "averaged") if n in server}, len(ids))

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor | dict[str, Tensor]:
        """Both models' predictions, the scored one's first."""
        scores = {"server": m.head(m.body(x))}
        if "averaged" not in down:
            return scores["server"]
        mean = Model(m.net, m.tensors | down["averaged"])
        scores["averaged"] = mean.head(mean.body(x))
        return {self.scored: scores[self.scored], **scores}
