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
    """An algorithm whose server fits a linear head to drawn features, on CE.

    By AdamW, as FedPFT's code does: a few epochs of plain SGD leave a head unfitted that begins at zero.
    """

    pure = True

    head_optimizer: str = hyper("adamw", choices=("adamw", "sgd"), help="the head's optimiser at the server")
    head_epochs: int = hyper(10, 1, 50, log=True, help="epochs of the head on the drawn features")
    head_batch: int = hyper(32, 8, 256, log=True, help="mini-batch of these epochs")
    head_lr: float = hyper(1e-3, 1e-5, 10.0, log=True, help="the head's learning rate at the server")

    linear_head = True

    checked_with: ClassVar[Mapping[str, Any]] = {"head_epochs": 1}

    def fitted(self, head: dict[str, Tensor], x: Tensor, present: Tensor, stream: torch.Generator) -> dict[str, Tensor]:
        """The head {weight, bias}, fitted to x [C, r, D]: r draws of every class, of which those seen [C] count."""
        y = torch.arange(len(x), device=x.device)[:, None].expand(x.shape[:2])
        start, rows = (head["weight"], head["bias"]), (x[present].flatten(0, 1), y[present].flatten())
        plan = self.head_epochs, self.head_batch
        weight, bias = descend(*start, *rows, *plan, self.head_lr, stream, self.head_optimizer)
        return {"weight": weight, "bias": bias}


def one_component(scenario: Scenario) -> dict[str, str]:
    """The hyperparameter `components`, with the reason, if small classes leave every mixture one component."""
    max_shots = scenario.shots + scenario.shots_spread
    if scenario.partition != "ways-shots" or max_shots >= 10:
        return {}
    return {"components": f"a class has at most {max_shots} rows, and a component needs 5"}


def normal(shape: tuple[int, ...], like: Tensor, stream: torch.Generator) -> Tensor:
    """Standard normal numbers from the server's stream, where `like` is."""
    return torch.randn(shape, generator=stream, dtype=like.dtype).to(like.device)
