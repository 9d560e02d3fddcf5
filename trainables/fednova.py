"""FedNova: FedAvg that averages updates per step, so that clients that take more steps do not bias the objective.

    down     w
    client   w_k <- w, local epochs on CE
    up       w_k, n_k;  a_k:  (w - w_k) / η is a weighted sum of the client's gradients, a_k the sum of these weights,
             which is the number of steps for plain SGD, and more with momentum
    server   p_k = n_k / Σ_j n_j,    Δ = Σ_k p_k a_k · Σ_k p_k (w_k - w) / a_k
             m <- β m + Δ
             w <- w + m,    with m = 0 before round 1

Wang et al., NeurIPS 2020, arXiv:2007.07481, equations 10 and 11, and its code (JYWa/FedNova at 47b4e09).  The effective
number of steps, τ_eff, is Σ_k p_k a_k, which is the code's choice and FedAvg's.  p_k is relative to the clients of the
round.  Adam's a_k is its number of steps.

Differs from the code:

- The server's momentum β (its gmf) is on moves of weights.  The code's is on gradients, which differs if the learning
  rate decays.
- The server takes the mean of BatchNorm's running statistics, because they are no parameters.  In the code they stay at
  the client.
- The proximal variant is left out.

"as_published" has the learning rate, momentum and weight decay of its script (launch_exp.sh).  With it, running
statistics stay at the client too.

If all clients make as many steps, it is FedAvgM, and at β = 0 FedAvg.
"""

from dataclasses import dataclass

import torch

from fedtune.core.trees import Tree, mean_over_clients
from fedtune.experiment.algorithm import Algorithm, Data, Model, Task, hyper


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedNova as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "means"

    server_momentum: float = hyper(0.0, 0.0, 0.99, symbol="β", help="momentum of the server's updates")

    shared = ("body", "head")
    presets = {"as_published": {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4, "batch_norm": "personal"}}

    def init(self, task: Task) -> dict[str, Tree]:
        """The server has not moved yet."""
        return {"moves": {n: torch.zeros(task.shapes[n]) for n in task.parameters}}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The weight of all gradients in the client's move; factors on some parts' rates cancel."""
        return {"weight": data.client.path["head"] / data.client.lr}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """A step along the mean move per step, as long as FedAvg's."""
        w, mean = server["shared"], super().aggregate(server, up, task)["shared"]
        a = torch.where(up["weight"] > 0, up["weight"], 1)  # who has not stepped has not moved either
        p = up["rows"].to(a) / up["rows"].sum()
        per_step, steps = mean_over_clients(up["shared"], p / a), (p * a).sum() * (p / a).sum()
        moves = {n: self.server_momentum * v + steps * (per_step[n] - w[n]) for n, v in server["moves"].items()}
        return server | {"shared": mean | {n: w[n] + v for n, v in moves.items()}, "moves": moves}
