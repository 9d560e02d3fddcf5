"""What FedAMP and FedFomo share: a server that keeps each client's last model, and sends mixtures or some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtune.core.trees import Tree, put
from fedtune.experiment.algorithm import Algorithm, Task


@dataclass(frozen=True)
class LastModels(Algorithm):
    """An algorithm whose clients send their models and go on from their own; n_k is sent too, but has no use."""

    pure = True

    shared = ("body", "head")
    predicts: ClassVar[tuple[str, ...]] = (
        "body",
        "head",
        "own",
    )  # no part of the net: no rule for one global model fits
    scored_model = "each client's own model"

    def init(self, task: Task) -> dict[str, Tree]:
        """Nobody has sent a model.  Of running statistics none is kept."""
        models = {n: torch.zeros(task.clients, *task.shapes[n]) for n in task.parameters}
        return {"models": models, "sent": torch.zeros(task.clients, dtype=torch.bool)}

    def receive(self, down: dict) -> dict[str, Tensor]:
        """Nothing of the client's own is replaced."""
        return {}

    def deployed(self, server: dict, ids: Tensor, task: Task) -> dict[str, Tree]:
        """Nothing: the own model predicts."""
        return {}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict[str, Tree]:
        """Keep each client's last model."""
        models = put(server["models"], up["ids"], {n: up["shared"][n] for n in server["models"]})
        return server | {"models": models, "sent": server["sent"].index_fill(0, up["ids"], True)}
