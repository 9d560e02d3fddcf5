"""FedCAC: clients share uncritical weights with all, and critical ones with clients whose critical weights are similar.

    down     to each client its own model:  W_k where M_k is true, elsewhere w;  before its first round w
    client   w_k <- what it received, local epochs on CE
             M_k: in every tensor the share τ of numbers with the largest |(w_k - what it received) · w_k|
    up       w_k, n_k;  M_k, one bit per number
    server   w = Σ_k n_k w_k / Σ_k n_k
             O_kj = 1 - |M_k - M_j| / 2|M_k|,   for the clients of the round
             W_k = the plain mean of w_k and of the w_j with O_kj >= mean O + t/β · (max O - mean O)
             the server keeps W_k and M_k until k takes part again

Wu et al., ICCV 2023, arXiv:2309.11103, and its code (kxzxvbk/Fling at f6c6f1e, fedcac_client.py, fedcac_group.py).  τ
and β have the code's values for CIFAR-10.  "as_published" adds the learning rate and momentum of its clients.

The bound on O_kj rises with t.  In round β, a client shares its critical numbers only with the clients that overlap
most, and in later rounds with none.  If a tensor's share τ includes a product of at most 1e-10, its critical numbers
are all those with a product above 1e-20 instead, as in the code.

Differs: the server puts the two models together and sends one.  The code sends both.

The server takes the mean of BatchNorm's running statistics, because they are no parameters.

τ = 0 is FedAvg.  So is τ = 1, if all clients have equally many rows and every number moves at every client.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, put, to_all
from fedtune.experiment.algorithm import Algorithm, Data, Model, Ragged, Task, hyper


@dataclass(frozen=True)
class FedCAC(Algorithm):
    """FedCAC as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"

    tau: float = hyper(0.5, 0.0, 1.0, symbol="τ", help="share of critical numbers in every tensor; 0 is FedAvg")
    together: int = hyper(
        100, 1, 500, log=True, symbol="β", help="rounds until critical numbers are shared with the nearest clients only"
    )

    shared = ("body", "head")
    scored_model = "the averaged model with each client's own mean in its critical parameters"
    contrasts = {"together": (1, 500, {})}
    presets = {"as_published": {"lr": 0.1, "momentum": 0.9}}

    def init(self, task: Task) -> dict[str, Tree]:
        """Nobody has critical numbers."""
        shapes = {n: (task.clients, *task.shapes[n]) for n in task.parameters}
        masks = {n: torch.zeros(shape, dtype=torch.bool) for n, shape in shapes.items()}
        return {"masks": masks, "own": {n: torch.zeros(shape) for n, shape in shapes.items()}}

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The critical numbers, as bits."""
        received, requests = down["shared"], {}
        for n in (n for n, _ in m.net.named_parameters() if n in received):
            mask = critical((m[n] - received[n]) * m[n], int(self.tau * m[n].numel()))
            requests[n] = Ragged(m[n].new_zeros(*mask.shape, 0), mask)
        return {"masks": requests}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """Send every client the common model with its own critical numbers."""
        model = to_all(server["shared"], len(ids))
        return {
            "shared": model
            | {n: torch.where(t[ids], server["own"][n][ids], model[n]) for n, t in server["masks"].items()}
        }

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """FedAvg, and the mean over the clients with which each shares its critical numbers."""
        masks = {n: t.present for n, t in up["masks"].items()}
        share = self.sharing(torch.cat([t.flatten(1) for t in masks.values()], 1), task.t)  # [m, m]
        own = {n: torch.tensordot(share.to(up["shared"][n]), up["shared"][n], 1) for n in masks}
        state = super().aggregate(server, up, task)
        return state | {"masks": put(server["masks"], up["ids"], masks), "own": put(server["own"], up["ids"], own)}

    def sharing(self, masks: Tensor, t: int) -> Tensor:
        """Weights [m, m] of the clients in each one's mean in round t, from masks [m, P]; rows sum to 1."""
        bits, alone = masks.double(), torch.eye(len(masks), device=masks.device).bool()
        size = bits.sum(1)
        overlap = 1 - (size[:, None] + size - 2 * bits @ bits.T) / (2 * size[:, None]).clamp(min=1)
        if len(masks) > 1:
            pairs = overlap[~alone]
            bound = pairs.mean() + t / self.together * (pairs.max() - pairs.mean())
            alone = alone | (overlap >= bound)
        return alone.double() / alone.sum(1, keepdim=True)


def critical(product: Tensor, number: int) -> Tensor:
    """Which numbers of a tensor are among the largest of |product|, of its shape; of those that moved."""
    size = product.abs()
    if not number:
        return torch.zeros_like(size, dtype=torch.bool)
    bound = size.flatten().topk(number).values[-1]
    smallest = torch.where(size > 1e-20, size, torch.inf).min()
    return size >= torch.where(bound > 1e-10, bound, smallest)
