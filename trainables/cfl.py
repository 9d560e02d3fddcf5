"""CFL: FedAvg that splits a cluster of clients in two when its model has converged and its clients' models have not.

    down     W_c(k), the model of the client's cluster c(k);  at first all are in one
    client   w_k <- W_c(k), local epochs on CE
    up       w_k, n_k
    server   Δ_k = w_k - W_c(k);  for every cluster c, with the clients of the round in it, p_k = n_k / Σ_c n:
             split c if   |Σ_c p_k Δ_k| < ε1,   max_c |Δ_k| > ε2,   c has more than two such clients,   and t > t0
             into the two groups of complete linkage by the cosines of the Δ_k
             W <- Σ p_k w_k over each cluster, or each half

Sattler, Müller and Samek, IEEE TNNLS 2020, arXiv:1910.01991, algorithm 2.  The paper was not at hand: this follows the
authors' code (felisat/clustered-federated-learning).  ε1, ε2 and t0 have its values.  ε1 and ε2 bound norms of updates,
so good values depend on the model and the learning rate.

Differs from this code:

- Means are weighted by rows.  The code's are plain ("as_published").
- Not all clients need to take part in every round.  A client that misses a split goes to the half that holds the
  lowest-numbered participant of the cluster.
- Δ_k covers parameters only, no running statistics.

ε1 = 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core.trees import mean_over_clients, take, to_all, tree_map
from fedtune.experiment.algorithm import Algorithm, Task, hyper


@dataclass(frozen=True)
class CFL(Algorithm):
    """CFL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"

    eps1: float = hyper(
        0.4,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="ε1",
        first_round="first",
        help="split if the mean update is below this",
    )
    eps2: float = hyper(
        1.6, 0.01, 10.0, log=True, symbol="ε2", first_round="first", help="split if a client's update is above this"
    )
    start: int = hyper(20, 1, 50, extra_values=(0,), symbol="t0", first_round="first", help="no split up to this round")
    weighting: str = hyper("rows", choices=("rows", "clients"), help="a cluster's mean: weighted by rows, or plain")

    shared = ("body", "head")
    schedule = ("start",)
    # no part of the net, but it stays with a client all the same: no rule for one global model fits
    predicts = ("body", "head", "cluster")
    scored_model = "the model of each client's cluster"
    checked_with = {"eps1": 10.0, "eps2": 0.01, "start": 1}
    contrasts = {"eps1": (0.0, 10.0, {}), "eps2": (0.01, 10.0, {}), "start": (1, 50, {})}
    presets = {"as_published": {"weighting": "clients", "lr": 0.1, "lr_decay": 0.99, "momentum": 0.9}}

    def first(self) -> int:
        """The first round that can split."""
        return self.start + 1

    def init(self, task: Task) -> dict:
        """All are in one cluster, whose model is the shared one."""
        return {"cluster": torch.zeros(task.clients, dtype=torch.long)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict:
        """Send every client the model of its cluster."""
        if "models" not in server:
            return {"shared": to_all(server["shared"], len(ids))}
        return {"shared": take(server["models"], server["cluster"][ids])}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        """The mean of every cluster, or of the halves of one that splits."""
        sent, ids, cluster = up["shared"], up["ids"], server["cluster"].clone()
        share = up["rows"] if self.weighting == "rows" else torch.ones_like(up["rows"])
        models = server["models"] if "models" in server else {n: t[None] for n, t in server["shared"].items()}
        cluster_of, clusters = cluster[ids], len(next(iter(models.values())))  # [m]
        received = take(models, cluster_of)
        moves = torch.cat([(sent[n] - received[n]).flatten(1) for n in task.parameters if n in sent], 1)  # [m, P]
        for c in range(clusters):
            members = (cluster_of == c).nonzero()[:, 0]
            if task.t > self.start and self.splits(moves[members], share[members]):
                cluster[ids[members[second_half(moves[members])]]] = 1 + int(cluster.max())
        cluster_of, averages = cluster[ids], []
        for c in range(1 + int(cluster.max())):
            members = share * (cluster_of == c)
            averages.append(mean_over_clients(sent, members) if members.any() else take(models, c))
        models = tree_map(lambda *ts: torch.stack(ts), averages[0], *averages[1:])
        return {"shared": mean_over_clients(sent, share), "models": models, "cluster": cluster}

    def splits(self, moves: Tensor, share: Tensor) -> bool:
        """Whether the mean of moves [n, P] is short and one of them is long."""
        mean = share.to(moves) @ moves / share.sum()
        return len(moves) > 2 and bool((mean.norm() < self.eps1) & (moves.norm(dim=1).max() > self.eps2))

    def report(self, server: dict) -> dict[str, float]:
        """How many clusters there are."""
        return {"clusters_occupied": len(server["cluster"].unique())}


def second_half(moves: Tensor) -> Tensor:
    """Which moves [n, P] are not in the first one's group, [n] bool: two groups by complete linkage of cosines."""
    from scipy.cluster import hierarchy  # imported here, because few clusters split

    unit = F.normalize(moves.double(), dim=1)
    pairs = torch.triu_indices(len(moves), len(moves), 1)
    distances = (1 - unit @ unit.T).cpu()[*pairs].numpy()
    group = hierarchy.cut_tree(hierarchy.linkage(distances, "complete"), 2)[:, 0]
    return torch.as_tensor(group != group[0]).to(moves.device)
