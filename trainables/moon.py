"""MOON: FedAvg with a contrastive term: features near the received model's, and away from the client's last model's.

    down     w
    client   w_k <- w, local epochs on   L = CE + μ · mean_b ln(1 + exp((cos(z, z') - cos(z, z_w)) / τ))
             z = body(x);  z_w, z' the features that the received and the client's last model give of x, both fixed
             keeps the body that it ends with;  in its first round there is no last model and no second term
    up       w_k, n_k
    server   w = Σ_k n_k w_k / Σ_k n_k

Li, He and Song, CVPR 2021, arXiv:2103.16257, equation 3: its -ln of a softmax over two, written out.  Differs: z is
what the head reads; the paper puts a projection of two layers between body and head.  The paper's first last model is
the common start.  Fixed models predict as an evaluation does, with their running statistics.  μ = 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Task, hyper, part_of
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class MOON(Algorithm):
    """MOON as described in its module: hyperparameters, client and server code."""

    pure = True

    mu: float = hyper(
        1.0,
        0.01,
        20.0,
        log=True,
        extra_values=(0.0,),
        symbol="μ",
        first_round=2,
        help="weight of the contrastive loss; 0 is FedAvg",
    )
    temperature: float = hyper(
        0.5, 0.1, 5.0, log=True, symbol="τ", first_round=2, help="temperature of the contrastive loss"
    )

    shared = ("body", "head")

    def keep(self, task: Task) -> dict[str, Tree]:
        """The body it ended with, and whether it did yet."""
        names = [n for n in task.shapes if part_of(n) == "body" and not n.endswith("num_batches_tracked")]
        return {"body": {n: torch.zeros(task.shapes[n]) for n in names}, "seen": torch.zeros(())}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE plus the contrast of two models' features."""
        z, last = m.body(batch.x), batch.client.kept
        loss = cross_entropy(m.head(z), batch.y)
        if not self.mu:
            return loss
        near = F.cosine_similarity(z, m.still(down["shared"]).body(batch.x))  # [B]
        far = F.cosine_similarity(z, m.still(last["body"]).body(batch.x))
        return loss + self.mu * last["seen"] * F.softplus((far - near) / self.temperature).mean()

    def remember(self, m: Model, data: Data, down: dict) -> dict[str, Tree]:
        """The body as it was trained."""
        last = data.client.kept
        return {"body": {n: m[n] for n in last["body"]}, "seen": torch.ones_like(last["seen"])}
