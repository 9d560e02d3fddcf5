"""GPFL: a valve turns the body's features into generic ones, guided by an embedding per class, and personal ones.

    down     body, embeddings e_c, valve
    client   takes these, keeps its head.  From the received embeddings ē:  g = mean_c ē_c,  p = Σ_c ē_c n_k,c / n_k
             local epochs on   L = CE(head(v(z, p)), y) + CE(cos(v(z, g), e), y) + λ |v(z, g) - ē_y| + μ/2 (|e|² + |v|²)
             z = body(x);   v(z, a) = relu(z · (1 + γ(a)) + β(a)),   γ and β each a linear layer, ReLU, LayerNorm
             |v(z, g) - ē_y| is the norm over all rows of the mini-batch;   n_k,c its rows of class c
    up       body_k, e, valve, n_k
    server   their means weighted by rows;  head(v(z, p)) predicts

Zhang et al., ICCV 2023, arXiv:2308.10279, and its code (TsingZ0/GPFL and PFLlib).  λ and μ have the code's values for
its first run.  A client that never took part predicts with p = g.

Differs from the code: g and p are means of the embeddings that the client has just received.  In the code they are 0 in
round 1.  Later they are means of the embeddings that the client had before it received new ones.

There are two ablations.  guidance=False leaves out the second and the third term and |e|².  valve=False sets v(z, a) =
z and leaves out |v|².  Both together are FedPer.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper
from fedtune.nn.layers import Linear, cross_entropy


@dataclass(frozen=True)
class GPFL(Algorithm):
    """GPFL as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "mean"

    lam: float = hyper(
        0.01, 1e-4, 1.0, log=True, extra_values=(0.0,), symbol="λ", help="weight of the distance to the own embedding"
    )
    mu: float = hyper(
        0.1, 1e-4, 1.0, log=True, extra_values=(0.0,), symbol="μ", help="L2 penalty on embeddings and valve"
    )
    guidance: bool = hyper(True, help="guide generic features by the embeddings (False: an ablation)")
    valve: bool = hyper(True, help="separate generic from personal features (False: an ablation)")

    structural = ("guidance", "valve")
    presets = {"as_published": {"momentum": 0.0, "batch_norm": "personal"}}

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """The body, and what is used besides."""
        added = ("embedding",) * (self.guidance or self.valve) + ("valve",) * self.valve
        return ("body", *added)

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the embeddings and the valve, if they are used."""
        d = task.features
        if "embedding" in self.shared:
            net.add_module("embedding", nn.Embedding(task.classes, d))
        if self.valve:
            sides = {n: nn.Sequential(Linear(d, d), nn.ReLU(), nn.LayerNorm(d)) for n in ("scale", "shift")}
            net.add_module("valve", nn.ModuleDict(sides))
        return net

    def keep(self, task: Task) -> dict[str, Tree]:
        """The client's share of each class, which predictions need; equal ones until it took part."""
        return {"share": torch.full((task.classes,), 1 / task.classes)}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """The personal loss, the two that guide generic features, and the penalty."""
        z = m.body(batch.x)
        counts = batch.client.counts.to(z)  # whole numbers would divide to float32
        received = down["shared"].get("embedding.weight")  # [C, D]
        loss = cross_entropy(m.head(self.opened(m, z, received, counts / counts.sum())), batch.y)
        if self.guidance:
            generic = self.opened(m, z, received, torch.ones_like(counts) / len(counts))
            cosine = F.normalize(generic, dim=1) @ F.normalize(m["embedding.weight"], dim=1).T
            distance = (generic - received[batch.y]).square().sum().clamp(min=1e-12).sqrt()
            loss = loss + cross_entropy(cosine, batch.y) + self.lam * distance
        parts = ("embedding",) * self.guidance + ("valve",) * self.valve
        squares = [m[n].square().sum() for n, _ in m.net.named_parameters() if n.startswith(parts)] if parts else []
        return loss + self.mu / 2 * sum(squares)

    def opened(self, m: Model, z: Tensor, embedding: Tensor | None, share: Tensor) -> Tensor:
        """Features [B, D] through the valve, under the embeddings' mean by these shares [C]."""
        if embedding is None or not self.valve:
            return z
        a = share[None] @ embedding  # [1, D]
        scale, shift = (m.part(f"valve.{n}")(a) for n in ("scale", "shift"))
        return (z * (1 + scale) + shift).relu()

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The client's share of each class."""
        counts = data.client.counts.to(data.client.kept["share"])
        return {"share": counts / counts.sum()}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        """The own head on personal features."""
        return m.head(self.opened(m, m.body(x), m.tensors.get("embedding.weight"), m.kept["share"]))
