"""What CCVR and FedPFT share: a server that fits the head to sampled features, equally many of each class.

And what FedPFT and GFPL share: mixtures of the features of few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtune.experiment.algorithm import Algorithm, hyper
from fedtune.experiment.scenario import Scenario
from fedtune.nn.heads import descend


@dataclass(frozen=True)
class FitsHead(Algorithm):
    """An algorithm whose server fits a linear head to drawn features by plain SGD on CE."""

    pure = True

    head_epochs: int = hyper(3, 1, 50, log=True, help="epochs of the head on the drawn features")
    head_batch: int = hyper(32, 8, 256, log=True, help="mini-batch of these epochs")
    head_lr: float = hyper(0.03, 1e-4, 1.0, log=True, help="the head's learning rate at the server")

    linear_head = True

    checked_with: ClassVar[Mapping[str, Any]] = {"head_epochs": 1}

    def fitted(self, head: dict[str, Tensor], x: Tensor, seen: Tensor, stream: torch.Generator) -> dict[str, Tensor]:
        """The head {weight, bias}, fitted to x [C, r, D]: r draws of every class, of which those seen [C] count."""
        y = torch.arange(len(x), device=x.device)[:, None].expand(x.shape[:2])
        rows = x[seen].flatten(0, 1), y[seen].flatten()
        weight, bias = descend(
            head["weight"], head["bias"], *rows, self.head_epochs, self.head_batch, self.head_lr, stream
        )
        return {"weight": weight, "bias": bias}


def one_component(scenario: Scenario) -> dict[str, str]:
    """The hyperparameter `components`, with the reason, if small classes leave every mixture one component."""
    most = scenario.shots + scenario.shots_spread
    if scenario.partition != "ways-shots" or most >= 10:
        return {}
    return {"components": f"a class has at most {most} rows, and a component needs 5"}


def normal(shape: tuple[int, ...], like: Tensor, stream: torch.Generator) -> Tensor:
    """Standard normal numbers from the server's stream, where `like` is."""
    return torch.randn(shape, generator=stream, dtype=like.dtype).to(like.device)
