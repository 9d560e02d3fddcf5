"""A configuration as Ray Tune plays it: setup, step = one round, save, load, reset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from ray import tune
from ray.tune.result import SHOULD_CHECKPOINT

from fedtune.errors import Diverged
from fedtune.federation import Federation
from fedtune.layers import give_back_memory, keep_freed_memory
from fedtune.simulation import Experiment, Simulation

SAVING = 0.03  # of a trial's time may go into checkpoints


class FederatedTrainable(tune.Trainable):
    """Reports one row of metrics a round; ends after the scenario's rounds, or when training diverges.

    A trial that diverged reports chance as its validation accuracy, `diverged` and the reason, and is done: to the
    searcher it is a bad region, not a gap (a trial without a value would stay open in Optuna for ever).

    It asks for a checkpoint as often as the time that the last one took allows.
    """

    def setup(self, config: dict[str, Any], experiment: Experiment, data: Federation) -> None:  # type: ignore[override]
        """experiment and data come once per actor, through Ray's object store."""
        resources = self.trial_resources
        torch.set_num_threads(max(1, int(resources.required_resources.get("CPU", 1))) if resources else 1)
        keep_freed_memory()
        self.experiment, self.data = experiment, data
        self._cost, self._saved = 0.03, time.monotonic()  # seconds of the last checkpoint, and when it ended
        self._begin(config)

    def step(self) -> dict[str, Any]:
        """One round."""
        try:
            row = self.simulation.step()
        except Diverged as error:
            return {"val_acc": 1 / self.data.classes, "diverged": True, "reason": str(error), "done": True}
        done = row["round"] >= self.simulation.setting.scenario.rounds
        due = not done and time.monotonic() - self._saved > self._cost / SAVING
        return {k: v for k, v in row.items() if v is not None} | {"done": done, SHOULD_CHECKPOINT: due}

    def save(self, *args: Any, **options: Any) -> Any:
        """As Tune does it, timed: the file and bringing it to the run's storage."""
        began = time.monotonic()
        saved = super().save(*args, **options)
        self._saved = time.monotonic()
        self._cost = self._saved - began
        return saved

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the state, which is all there is."""
        self.simulation.save(Path(checkpoint_dir) / "state.pt")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a state."""
        self.simulation.load(Path(checkpoint) / "state.pt")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial in the same process: everything is rebuilt, so nothing of the last one is left."""
        del self.simulation
        give_back_memory()
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        self.simulation = Simulation(self.experiment, config, self.data)
