"""What FedAvg-FT and FedBABU share: clients fine-tune the received model on their own rows before they are scored.

The defaults are those of FedBABU's code, which tunes FedBABU's and FedAvg's models alike: body and head, five epochs, a
rate of their own, 1e-3 (jhoon-oh/FedBABU at e34c15b, analysis.ipynb, second cell).  PFLlib tunes body and head too, ten
epochs at the clients' rate (d832e76, clientbabu.py, `fine_tune`): the preset "pfllib".  That rate is tuned for many
rounds, each of which is averaged; where it is high, fine-tuning at it diverges on few rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedtune.experiment.algorithm import Algorithm, Phase, Task, hyper


@dataclass(frozen=True)
class FineTunes(Algorithm):
    """An algorithm that fine-tunes before scoring, by CE."""

    pure = True

    tune_epochs: int = hyper(
        5, 1, 50, extra_values=(0,), symbol="τ", help="fine-tuning epochs before a client is evaluated"
    )
    tune: str = hyper("all", choices=("all", "head"), help="what fine-tuning trains")
    tune_lr: float | None = hyper(
        1e-3, 1e-5, 1.0, log=True, extra_values=(None,), help="learning rate of fine-tuning; None: the clients' lr"
    )

    checked_with: ClassVar[Mapping[str, Any]] = {"tune_epochs": 1, "tune_lr": 0.03}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pfllib": {"tune_epochs": 10, "tune_lr": None}}

    def adapt(self, task: Task) -> tuple[Phase, ...]:
        """Local epochs on the client's own rows."""
        parts = ("head",) if self.tune == "head" else ()
        tuning = Phase(self.loss, train=parts, epochs=self.tune_epochs, lr=self.tune_lr)
        return (tuning,) if self.tune_epochs else ()
