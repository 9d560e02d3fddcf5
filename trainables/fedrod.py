"""FedRoD: one body under two heads: a generic one, trained as if classes were balanced, and a personal one on top.

    down     w = (body, generic head G)
    client   w_k <- w;  local epochs on   L + L',   z = body(x)
             generic  L  = CE(G(z) + ln n_k, y),   n_k [C] its rows of each class (balanced softmax)
             personal L' = CE(G(z) + P_k(z), y),   z and G(z) fixed: it moves P_k alone
    up       w_k, n_k
    server   the mean of the w_k weighted by rows;   P_k stays with its client
             hypernetwork: P_k = H(n_k / Σ n_k), and H is sent and averaged too
    scored   G(z) + P_k(z);  the generic head is logged

Chen and Chao, ICLR 2022, arXiv:2107.00778, sections 4 and 5, from a description of the paper; and PFLlib (d832e76,
clientrod.py), which has the linear P_k.  "as_published" is PFLlib's plain SGD.  As in PFLlib, P_k starts as a copy of
G.  H has two layers.

Differs: with a hypernetwork, a client has no P_k before its first round.  The paper's H makes one for newcomers too.

With balanced=False, w is FedAvg's.  The same holds if every client has equally many rows of every class.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Phase, Task, hyper
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class FedRoD(Algorithm):
    """FedRoD as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    personal: str = hyper(
        "linear",
        choices=("linear", "hypernetwork"),
        help="the personal head: its client's own, or made from its classes",
    )
    hyper_width: int = hyper(16, 4, 128, log=True, help="width of the hypernetwork's hidden layer")
    balanced: bool = hyper(True, help="balanced softmax for the generic head (False: plain CE)")

    structural = ("personal", "hyper_width")
    predicts = ("body", "head", "personal")
    contrasts = {"hyper_width": (4, 16, {"personal": "hypernetwork"})}
    presets = {"as_published": {"momentum": 0.0}}

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The hypernetwork is everybody's."""
        return ("body", "head") if self.personal == "linear" else ("body", "head", "personal")

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the personal head, or the hypernetwork."""
        added = copy.deepcopy(net.get_submodule("head"))
        if self.personal == "hypernetwork":
            numbers = task.classes * (task.features + 1)
            added = nn.Sequential(
                nn.Linear(task.classes, self.hyper_width), nn.ReLU(), nn.Linear(self.hyper_width, numbers)
            )
        net.add_module("personal", added)
        return net

    def keep(self, task: Task) -> dict[str, Tree]:
        """The share of each class, for the hypernetwork."""
        return {} if self.personal == "linear" else {"share": torch.zeros(task.classes)}

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The share of each class."""
        counts = data.client.counts
        return {n: counts.to(t) / counts.sum() for n, t in data.client.kept.items()}

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Both heads at once; the personal one, which has a loss of its own, is clipped by itself."""
        return (Phase(self.loss, lr_scale={"personal": 1.0}),)

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The sum L + L' of both heads' losses."""
        counts, z = batch.client.counts, m.body(batch.x)
        generic = m.head(z)
        prior = counts.to(z).log() if self.balanced else 0.0  # -inf for a class that it does not hold
        both = generic.detach() + self.own(m, z.detach(), counts.to(z) / counts.sum())
        return cross_entropy(generic + prior, batch.y) + cross_entropy(both, batch.y)

    def own(self, m: Model, z: Tensor, share: Tensor) -> Tensor:
        """The personal head's logits."""
        if self.personal == "linear":
            return m.part("personal")(z)
        made = m.part("personal")(share[None]).view(len(share), -1)  # [C, D + 1]
        return F.linear(z, made[:, :-1], made[:, -1]) * (share.sum() > 0)

    def predict(self, m: Model, x: Tensor, down: dict) -> dict[str, Tensor]:
        """Both heads; the generic one is logged."""
        z = m.body(x)
        generic = m.head(z)
        return {"both": generic + self.own(m, z, m.kept.get("share", z)), "generic": generic}
