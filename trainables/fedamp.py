"""FedAMP: the server keeps a cloud model for each client, a mixture of all models in which similar ones weigh more.

    down     u_k, the client's cloud model;  none in round 1
    client   local epochs from its own w_k on   CE(w_k) + λ/(2α) · |w_k - u_k|²
    up       w_k, n_k
    server   u_k = ξ_k,k w_k + Σ_{j ≠ k} ξ_k,j w_j  over the last models of all clients that have sent one
             distance   ξ_k,j = α A'(|w_k - w_j|²),   A'(x) = exp(-x/σ) / σ;   ξ_k,k = 1 - Σ_{j ≠ k} ξ_k,j
             cosine     ξ_k,j = (1 - ξ) exp(σ cos(w_k, w_j)) / Σ_{i ≠ k} exp(σ cos(w_k, w_i));   ξ_k,k = ξ
    scored   w_k

Huang et al., AAAI 2021, arXiv:2007.03797, algorithm 1, from a description of the paper; and PFLlib (d832e76:
clientamp.py, serveramp.py), whose plain SGD is "as_published".  similarity="cosine" is the paper's HeurFedAMP.

Differs:

- The paper asks for an α that leaves ξ_k,k >= 0.  Here any α may be given: where the others' weights exceed a sum of 1,
  they are scaled down to 1.
- α is constant over rounds.
- A client that has not sent a model yet gets the mean of all models that were sent.
- PFLlib mixes the models of the last round alone, and penalises the distance instead of its square.  No preset does
  this.

Mixture and penalty cover trainable parameters.  Clients send n_k, but it has no use here.  λ = 0 is Local.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtune.core.trees import Tree
from fedtune.experiment.algorithm import Batch, Model, Task, hyper
from fedtune.trainables._last_models import LastModels


@dataclass(frozen=True)
class FedAMP(LastModels):
    """FedAMP as described in its module: hyperparameters, client and server code."""

    pure = True
    releases = "single"

    lam: float = hyper(
        1.0, 1e-3, 10.0, log=True, extra_values=(0.0,), symbol="λ", first_round=2, help="pull towards the cloud model"
    )
    cloud_step: float = hyper(
        1.0, 1e-2, 100.0, log=True, symbol="α", first_round=2, help="step of a cloud model towards similar models"
    )
    sigma: float = hyper(1.0, 1e-2, 1000.0, log=True, symbol="σ", first_round=2, help="scale of the similarity")
    similarity: str = hyper(
        "distance", choices=("distance", "cosine"), first_round=2, help="similarity of models: by distance, or by angle"
    )
    self_weight: float = hyper(0.5, 0.0, 0.99, symbol="ξ", first_round=2, help="weight of the own model (cosine)")

    contrasts = {"self_weight": (0.0, 0.9, {"similarity": "cosine"})}
    presets = {"as_published": {"momentum": 0.0}}

    def broadcast(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """Each client's mixture."""
        if task.t <= 1:
            return {}
        flat = torch.cat([t.flatten(1) for t in server["models"].values()], 1)  # [K, P]
        weights, any_ = self.weights(flat, server["sent"])[ids], server["sent"].int().argmax()
        # differences from one model: if all models are the same, so is the mixture, to the last bit
        return {"shared": {n: t[any_] + torch.tensordot(weights, t - t[any_], 1) for n, t in server["models"].items()}}

    def weights(self, models: Tensor, sent: Tensor) -> Tensor:
        """The weights ξ [K, K] of models [K, P] for each client; sent [K]: who has one."""
        others = sent & ~torch.eye(len(sent), dtype=torch.bool, device=sent.device)  # [K, K]
        if self.similarity == "cosine":
            unit = F.normalize(models, dim=1)
            similarity = (self.sigma * (unit @ unit.T)).masked_fill(~others, -torch.inf).softmax(1).nan_to_num()
            weights = (1 - self.self_weight) * similarity
        else:
            distance = torch.stack([(models - one).square().sum(1) for one in models])
            weights = self.cloud_step * (-distance / self.sigma).exp() / self.sigma * others
            weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
        weights = weights + torch.diag(1 - weights.sum(1))
        return torch.where(sent[:, None], weights, sent.to(models) / sent.sum())

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        """CE, and the pull to the cloud model."""
        loss = super().loss(m, batch, down)
        if "shared" not in down or not self.lam:
            return loss
        distance = sum(((m[n] - u) ** 2).sum() for n, u in down["shared"].items())
        return loss + self.lam / (2 * self.cloud_step) * distance
