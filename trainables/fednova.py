"""FedNova: FedAvg over updates per step, so that clients that take more steps do not bias the objective.

    down     w
    client   w_k <- w, local epochs on CE
    up       w_k, n_k;  a_k, the sum of the weights that its gradients have in the move (w - w_k) / η:
             the number of steps for plain SGD, more with momentum
    server   p_k = n_k / Σ_j n_j,    Δ = Σ_k p_k a_k · Σ_k p_k (w_k - w) / a_k
             m <- β m + Δ
             w <- w + m,    with m = 0 before round 1

Wang et al., NeurIPS 2020, arXiv:2007.07481, equations 10 and 11, and its code (JYWa/FedNova): τ_eff is Σ_k p_k a_k, as
there and as FedAvg's is.  p_k is over the clients of the round.  β is the code's server momentum (gmf), of weights; the
code's is of gradients, which differs where the learning rate decays.  The proximal variant is left out.  Adam's a_k is
its number of steps.  BatchNorm's running statistics are no parameters: the server takes their mean; in the code they
stay at the client, as with "as_published", which has the rate and momentum of its script, too (JYWa/FedNova at
47b4e09, launch_exp.sh).
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
