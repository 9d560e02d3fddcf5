"""Several seeds in one stack, and each alone: what both are asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing import assert_close

from fedtune.core.errors import Diverged
from fedtune.data.federation import Federation
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from tests.support.helpers import CLOCK, TIGHT, numbers

SEEDS = (3, 4, 5)


def both(
    name: str, scenario: Scenario, config: dict[str, Any], data: dict[int, Federation] | None = None, **more: Any
) -> tuple[Seeds, list[Simulation]]:
    """The seeds of an experiment together, and each alone; in float64."""
    data = data or {seed: partitioning.make(scenario, seed) for seed in SEEDS}
    made = [Experiment(algorithm=name, scenario=scenario, seed=seed, executor="rule", **more) for seed in data]
    alone = [Simulation(e, config, d, torch.float64) for e, d in zip(made, data.values(), strict=True)]
    return Seeds(made[0], config, data, torch.float64), alone


def figures(row: dict[str, Any] | Diverged) -> dict[str, Any]:
    assert not isinstance(row, Diverged), row
    return {n: v for n, v in row.items() if n not in CLOCK}


def require_equal(together: Seeds, alone: list[Simulation], rounds: int = 3) -> None:
    for _ in range(rounds):
        rows = together.steps()
        for i, run in enumerate(alone):
            assert_close(figures(rows[i]), figures(run.step()), **TIGHT, equal_nan=True)
            assert_close(together.runs[i].last.clients, run.last.clients, **TIGHT)
    for ours, run in zip(together.runs, alone, strict=True):
        assert_close(numbers(ours.state), numbers(run.state), **TIGHT)
