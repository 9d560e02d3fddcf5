"""What Ditto, pFedMe and APFL share: a common model, which is sent, beside the client's own, which is scored."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fedtune.experiment.algorithm import Algorithm, Model, Phase, Task


@dataclass(frozen=True)
class TwoModels(Algorithm):
    """An algorithm whose clients train the common model and their own; the server averages the common one."""

    pure = True

    shared = ("common",)
    predicts: ClassVar[tuple[str, ...]] = ("body", "head")

    def build(self, net: nn.Module, task: Task) -> nn.Module:
        """Add the common model, which starts where the own one does."""
        own = nn.ModuleDict({part: net.get_submodule(part) for part in self.predicts})
        net.add_module("common", copy.deepcopy(own))
        return net

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Both models at once, each clipped by itself."""
        return (Phase(self.loss, lr_scale={"common": 1.0}),)

    def own(self, m: Model) -> list[str]:
        """The names of the own model's parameters; those of the common one have `common.` in front."""
        return [n for n, _ in m.net.named_parameters() if n.startswith(("body.", "head."))]

    def common(self, m: Model, x: Tensor) -> Tensor:
        """Logits of the common model."""
        return m.part("common.head")(m.part("common.body")(x))
