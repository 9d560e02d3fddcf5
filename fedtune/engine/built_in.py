"""How the engine trains an `Experiment`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedtune.core.errors import Diverged, UserError
from fedtune.core.workload import HERE, Place, Trainer
from fedtune.data import datasets
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation
from fedtune.engine import seed_stack, simulation
from fedtune.engine.simulation import STATE, Seeds, Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario


class Engine(Trainer):
    """Trains an `Experiment` in this process, several seeds as one stack where that is faster."""

    def source(self, workload: Experiment) -> Scenario:
        """The scenario."""
        return workload.scenario

    def load(self, workload: Experiment, data_dir: str | None, download: bool) -> dict[str, Dataset]:
        """Its data set, by name."""
        name = workload.scenario.dataset
        return {name: datasets.load(name, data_dir, download)}

    def require(self, workload: Experiment, data: Mapping[str, Dataset], seeds: Sequence[int]) -> None:
        """UserError unless its data can be partitioned for these seeds."""
        partitioning.require_partitions(data[workload.scenario.dataset], workload.scenario, seeds)

    def report(self, workload: Experiment, data: Mapping[str, Dataset]) -> None:
        """Say what is worth knowing of its first partition."""
        partitioning.report(data[workload.scenario.dataset], workload.scenario, workload.seed)

    def prepare(self, workload: Experiment, data: Mapping[str, Dataset], seed: int) -> Federation:
        """The federation of one seed."""
        return partitioning.partition(data[workload.scenario.dataset], workload.scenario, seed)

    def chance(self, data: Federation) -> float:
        """The accuracy of a guess."""
        return 1 / data.classes

    def settled(self, workload: Experiment, config: dict[str, Any], data: Federation) -> Experiment:
        """The experiment with the executor that fits its code."""
        return simulation.settled(workload, config, data)

    def warm(self, workload: Experiment, config: dict[str, Any], data: Federation) -> None:
        """Train an unused round."""
        with suppress(Diverged, UserError):
            Simulation(workload, config, data).step()

    def seeds_at_once(self, workload: Experiment, config: dict[str, Any]) -> int:
        """As many as a stack should hold."""
        return seed_stack.seeds_at_once(workload, config)

    def start(
        self, workload: Experiment, config: dict[str, Any], data: Mapping[int, Federation], at: Place = HERE
    ) -> Seeds:
        """Runs that have not trained a round yet."""
        return Seeds(workload, config, data)

    def saved_round(self, folder: Path) -> int:
        """The round of the first seed's state."""
        return int(torch.load(folder / "0" / STATE, weights_only=True, map_location="cpu")["round"])


ENGINE = Engine()
