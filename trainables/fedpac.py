"""FedPAC: features are aligned by prototypes, and each client gets the mixture of heads that suits its classes.

    down     body; from round 2 on prototypes p_c, and the client's own mixture of heads
    client   with the received body, z = body(x):  h_k, the mean of one-hot(y) zᵀ,  V_k = (mean |z|² - |h_k|²) / n_k
             τ epochs on CE move the head;  then the scenario's local work moves the body on CE + λ · |z - p_y|² / D
    up       body_k, n_k, head_k, h_k, V_k;  p_k,c the mean feature of class c under the trained body, n_k,c its rows
    server   the mean of the bodies weighted by rows;   p_c = Σ_k n_k,c p_k,c / Σ_k n_k,c
             head for k:  Σ_j a_j head_j,  a = argmin Σ_j a_j² V_j + |Σ_j a_j (h_k - h_j)|²  over a >= 0, Σ_j a_j = 1

Xu, Tong and Huang, ICLR 2023, arXiv:2306.11867, algorithm 1, from a description of the paper; and PFLlib (d832e76:
clientpac.py, serverpac.py).  "as_published" is PFLlib's plain SGD, with p_c as plain means over clients.

Heads are mixed among the clients of a round.  A client that never took part gets the plain mean of the last round's
heads.

Differs from PFLlib: it drops mixture weights below 1e-3.  Where rounding makes an eigenvalue negative, it also drops
eigenvalues below 0.01.  Here nothing is dropped.

λ = 0 with mixes=False is FedRep.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtune.core.trees import Tree, put, take, to_all
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Ragged, Task, hyper
from fedtune.nn.layers import cross_entropy
from fedtune.nn.prototypes import class_means, class_sums, mean_by_count, row_distance
from fedtune.nn.simplex import least_mixtures


@dataclass(frozen=True)
class FedPAC(Algorithm):
    """FedPAC as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "classes"

    lam: float = hyper(
        1.0,
        0.01,
        10.0,
        log=True,
        extra_values=(0.0,),
        symbol="λ",
        first_round=2,
        help="weight of the pull to prototypes",
    )
    head_epochs: int = hyper(1, 1, 10, symbol="τ", help="epochs that train the head before the body")
    mixes: bool = hyper(True, help="mix the clients' heads (False: each keeps its own)")
    weighting: str = hyper(
        "rows",
        choices=("rows", "clients"),
        first_round=2,
        help="prototypes are averaged over all rows, or over clients",
    )

    shared = ("body",)
    sends = ("protos", "head")
    presets = {"as_published": {"momentum": 0.0, "weighting": "clients"}}

    def init(self, task: Task) -> dict[str, Tree]:
        """No prototypes and no heads; whoever never took part gets the last of the K + 1 mixtures."""
        protos = Ragged(torch.zeros(task.classes, task.features), torch.zeros(task.classes, dtype=torch.bool))
        heads = {n: torch.zeros(task.clients + 1, *t) for n, t in task.shapes.items() if n.startswith("head.")}
        return {"protos": protos, "heads": heads, "place": torch.full((task.clients,), task.clients)}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """The body; and, once there are any, prototypes and the clients' mixtures."""
        down = {"shared": to_all(server["shared"], len(ids))}
        if task.t > 1 and self.lam:
            down["protos"] = to_all(server["protos"], len(ids))
        return down | ({"head": take(server["heads"], server["place"][ids])} if task.t > 1 and self.mixes else {})

    def receive(self, down: dict) -> dict[str, Tensor]:
        """The body, and the mixture of heads."""
        return down["shared"] | down.get("head", {})

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the head first, then the body."""
        return (Phase(self.loss, train=("head",), epochs=self.head_epochs), Phase(self.pulled, train=("body",)))

    def pulled(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, and the pull to prototypes."""
        z = m.body(batch.x)
        loss = cross_entropy(m.head(z), batch.y)
        if "protos" not in down:
            return loss
        protos, present = down["protos"]
        return loss + self.lam * (row_distance(z, protos[batch.y], "mse") * present[batch.y]).mean()

    def upload(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """Prototypes of the trained body; the head, and moments of the received body."""
        protos, counts = class_means(m.body(data.x), data.y, data.mask, len(data.client.counts))
        present = counts > 0
        up: dict[str, Tree] = {"protos": Ragged(protos, present), "counts": Ragged(counts, present)} if self.lam else {}
        if not self.mixes:
            return up
        z = m.at(down["shared"]).body(data.x)
        h = class_sums(z, data.y, data.mask, len(present))[0] / counts.sum()
        spread = (z.square().sum(1) * data.mask).sum() / counts.sum() - h.square().sum()
        head = {n: t for n, t in m.tensors.items() if n.startswith("head.")}
        return up | {"head": head, "h": Ragged(h, present), "variance": spread / counts.sum()}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """Average bodies and prototypes, and mix the heads for each client of the round."""
        server, last = super().aggregate(server, up, task), server["protos"]
        if self.lam:
            rows = up["counts"].values if self.weighting == "rows" else up["counts"].present.to(up["rows"])
            mean, present = mean_by_count(up["protos"].values, rows)
            protos = Ragged(torch.where(present[:, None], mean, last.values), last.present | present)
            server = server | {"protos": protos}
        if not self.mixes:
            return server
        ids, h = up["ids"], (up["h"].values * up["h"].present[..., None]).flatten(1)  # [m, C·D]
        weights = torch.cat([least_mixtures(h, up["variance"]), h.new_full((1, len(ids)), 1 / len(ids))])  # [m + 1, m]
        mixed = {n: torch.tensordot(weights, t, 1) for n, t in up["head"].items()}
        at = torch.cat([ids, ids.new_full((1,), task.clients)])
        return server | {"heads": put(server["heads"], at, mixed), "place": server["place"].index_copy(0, ids, ids)}
