"""How the engine trains an `Experiment`: the functions that `fedtune.core.workload.Trainer` describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedtune.core.errors import Diverged, UserError
from fedtune.core.workload import HERE, Place
from fedtune.data import datasets
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation
from fedtune.engine.seed_stack import seeds_at_once as seeds_at_once
from fedtune.engine.simulation import STATE, MultiSeedSimulation, Seeds, Simulation
from fedtune.engine.simulation import settled as settled
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment


def load(workload: Experiment, data_dir: str | None, download: bool) -> dict[str, Dataset]:
    """Its data set, by name."""
    name = workload.scenario.dataset
    return {name: datasets.load(name, data_dir, download)}


def require(workload: Experiment, data: Mapping[str, Dataset], seeds: Sequence[int]) -> None:
    """UserError unless its data can be partitioned for these seeds."""
    partitioning.require_partitions(data[workload.scenario.dataset], workload.scenario, seeds)


def report(workload: Experiment, data: Mapping[str, Dataset]) -> None:
    """Say what is worth knowing of its first partition."""
    partitioning.report(data[workload.scenario.dataset], workload.scenario, workload.seed)


def prepare(workload: Experiment, data: Mapping[str, Dataset], seed: int) -> Federation:
    """The federation of one seed."""
    return partitioning.partition(data[workload.scenario.dataset], workload.scenario, seed)


def chance(data: Federation) -> float:
    """The accuracy of a guess."""
    return 1 / data.classes


def warm(workload: Experiment, config: dict[str, Any], data: Federation) -> None:
    """Train an unused round, as a process's first one takes seconds more."""
    with suppress(Diverged, UserError):
        Simulation(workload, config, data).step()


def start(
    workload: Experiment, config: dict[str, Any], data: Sequence[Federation], at: Place = HERE
) -> MultiSeedSimulation:
    """A run of a configuration on the workload's seed and those after it."""
    return MultiSeedSimulation(workload, config, data)


def saved_round(folder: Path) -> int:
    """The round after which a run was saved there."""
    return int(torch.load(folder / STATE, weights_only=True, map_location="cpu")[0]["round"])


def seeded(workload: Experiment, config: dict[str, Any], data: Mapping[int, Federation], at: Place = HERE) -> Seeds:
    """Runs on several seeds, whose clients train as one stack where that is faster."""
    return Seeds(workload, config, data)
