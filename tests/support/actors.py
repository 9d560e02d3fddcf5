"""The actor of a trial without Ray around it."""

from typing import Any

from fedtune.core.budget import Budget
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.tuning.trainable import FederatedTrainable

SETTING = scenarios.find("digits-w4").override(clients=4, rounds=5)
DATA = [partitioning.make(SETTING, 0)]


class LocalActor(FederatedTrainable):
    """A trial's actor without Ray around it; its trials may be of unlike algorithms."""

    trial_resources, device = None, "cpu"

    def setup(self, config: dict[str, Any]) -> None:  # type: ignore[override]
        super().setup(
            config,
            workload=Experiment(algorithm="fedproto", scenario=SETTING, trainer=ENGINE),
            data=DATA,
            budget=Budget(),
        )

    def _begin(self, config: dict[str, Any]) -> None:
        values = dict(config)
        algorithm = values.pop("algorithm", "fedproto")
        self.workload = Experiment(algorithm=algorithm, scenario=SETTING, device=self.device, trainer=ENGINE)
        super()._begin(values)

    def _setup_logdir(self) -> None:
        pass


SAME = {"round", "training_iteration", "val_loss", "test_acc", "train_loss", "comm_mb", "done"}


def play(actor: FederatedTrainable, rounds: int = 5) -> list[dict[str, Any]]:
    """So many rounds of a trial, without times."""
    rows = [actor.train() for _ in range(rounds)]
    return [{k: v for k, v in row.items() if k in SAME or k.startswith("val_acc")} for row in rows]


MIXED_TRIALS = [
    ("fedproto", {"lam": 2.0}),
    ("gfpl", {"start": 2, "every": 2, "components": 3}),
    ("fedavg", {"lr": 0.02}),
    ("fedgen", {}),
    ("fedproto", {"lam": 0.5, "optimizer": "adam", "lr": 0.003}),
    ("fml", {}),
]
