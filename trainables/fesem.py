"""FeSEM: several global models instead of one; every client trains and is scored with the one nearest to its own.

    down     W_k(i), the centre of the client's cluster; before it has one, the mean over all clients
    client   w_i <- W_k(i), local epochs on CE
    up       w_i, n_i
    server   once, after round 1: the first centres are K_c of the w_i by k-means++
             E    k(i) = argmin_k |w_i - W_k|,  for the clients of the round
             M    W_k = Σ n_i w_i / Σ n_i  over the clients of the round in k; a cluster without one keeps its centre

Xie et al. 2021, arXiv:2108.08648 (first arXiv:2005.01026).  The paper gives neither hyperparameters nor a start.  Its
code clusters by the kernel of one dense layer, from random vectors, and regroups every 150 rounds.  Here:

- The distance is Euclidean over all weights.  K-means++ gives the first centres, without further steps of k-means.
  Clients are regrouped in every round.
- BatchNorm's running statistics and counters are averaged over the cluster.  They take no part in the distance, because
  their scale differs.
- A client that never took part has no cluster.  It gets FedAvg's mean of the last round, over all its participants.
- Two centres are equal if fewer than K_c clients took part in round 1, or if some of them sent the same.  The later one
  stays empty until a client is nearer to it.

K_c = 1 is FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.trees import mean_over_clients, put, take, to_all, tree_map
from fedtune.experiment.algorithm import Algorithm, Task, hyper
from fedtune.nn.layers import is_statistic


@dataclass(frozen=True)
class FeSEM(Algorithm):
    """FeSEM as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"
    as_in_text = True

    clusters: int = hyper(
        3, 2, 10, extra_values=(1,), symbol="K_c", help="clusters, each with a model on the server; 1 is FedAvg"
    )

    shared = ("body", "head")
    # no part of the net, but it stays with a client all the same: no rule for one global model fits
    predicts = ("body", "head", "cluster")
    scored_model = "the model of each client's cluster"
    structural = ("clusters",)

    def init(self, task: Task) -> dict:
        """Nobody is in a cluster; centres come with the first uploads."""
        return {"cluster": torch.full((task.clients,), -1)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Send every client the centre of its cluster."""
        if "centres" not in server:
            return {"shared": to_all(server["shared"], len(ids))}
        rows = tree_map(lambda c, mean: torch.cat([c, mean[None]]), server["centres"], server["shared"])
        return {"shared": take(rows, server["cluster"][ids])}  # -1 is the last row, the mean

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """One E step and one M step over the clients of the round."""
        sent, rows = up["shared"], up["rows"]
        if "centres" in server:
            centres = server["centres"]
        else:
            centres = take(sent, seeds(weights(sent), self.clusters, randomness.stream(task.seed, "clusters")))
        cluster = squared_distance_to_centres(weights(sent), weights(centres)).argmin(1)  # [m]
        moved = []
        for k in range(self.clusters):
            share = rows * (cluster == k)
            moved.append(mean_over_clients(sent, share) if share.any() else take(centres, k))
        return super().aggregate(server, up, task) | {
            "centres": tree_map(lambda *ts: torch.stack(ts), moved[0], *moved[1:]),
            "cluster": put(server["cluster"], up["ids"], cluster),
        }

    def report(self, server: dict) -> dict[str, float]:
        """How many clusters have a client."""
        return {"clusters_occupied": int((server["cluster"].unique() >= 0).sum())}


def weights(tensors: dict[str, Tensor]) -> Tensor:
    """All weights of every model as one row: [m, P]."""
    return torch.cat([t.reshape(len(t), -1) for n, t in tensors.items() if not is_statistic(n)], 1)


def squared_distance_to_centres(points: Tensor, centres: Tensor) -> Tensor:
    """Squared Euclidean distances [m, K_c] of points [m, P] and centres [K_c, P], from the very differences."""
    return torch.stack([(points - c).square().sum(1) for c in centres], 1)


def seeds(points: Tensor, number: int, stream: torch.Generator) -> Tensor:
    """Which points are the first centres: k-means++.  points [m, P] -> [number]

    The first is any; every further one is drawn with a probability that grows as the squared distance to the nearest
    centre so far.  Where every point is a centre already, the last one again.
    Source: Arthur and Vassilvitskii, SODA 2007, section 2.2.
    """
    m, u = len(points), torch.rand(number, generator=stream, dtype=torch.float64)
    centres: list[int] = []
    for k in range(number):
        mass = squared_distance_to_centres(points, points[centres]).amin(1).cpu() if centres else torch.ones(m)
        total = mass.double().cumsum(0)
        centres.append(min(int(torch.searchsorted(total, u[k] * total[-1], right=True)), m - 1))
    return torch.tensor(centres, device=points.device)
