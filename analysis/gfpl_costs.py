"""What GFPL's rounds cost, measured: real rounds are trained, and the ledger's counts read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment

FIELDS = {"m": "clients", "ways": "ways"}  # the others are hyperparameters
HYPERPARAMETERS = {"n": "components"}


def measured(
    experiment: Experiment,
    varied: Mapping[str, Sequence[int]],
    config: dict[str, Any] | None = None,
    data_dir: str | None = None,
) -> pd.DataFrame:
    """A row per value of n (components), m (clients) and w̄ (ways), each varied alone.

    Columns: varied, value, measured (numbers that a client sent and received per round, the mean over clients and all
    rounds), formula (the same by papers.md 3.5 without fusion: events/T · (1 + m) · w̄ n (2d + 1)).
    """
    rows = [
        {"varied": name, "value": value} | _cost(experiment, name, value, config or {}, data_dir)
        for name, values in varied.items()
        for value in values
    ]
    return pd.DataFrame(rows, columns=["varied", "value", "measured", "formula"])


def _cost(
    experiment: Experiment, name: str, value: int, config: dict[str, Any], data_dir: str | None
) -> dict[str, float]:
    if name in FIELDS:
        scenario = experiment.scenario.override(**{FIELDS[name]: value})
        experiment = Experiment(**(vars(experiment) | {"scenario": scenario}))
    else:
        config = config | {HYPERPARAMETERS[name]: value}
    simulation = Simulation(experiment, config, partitioning.make(experiment.scenario, experiment.seed, data_dir))
    alg: Any = simulation.setup.algorithm
    s, rounds = simulation.setup.scenario, simulation.setup.scenario.rounds
    rows = [simulation.step() for _ in range(rounds)]
    numbers = sum(row[f"{way}_floats"] for row in rows for way in ("up", "down"))
    events = sum(t >= alg.start and t % alg.every == 0 for t in range(1, rounds + 1))
    each = s.ways * alg.components * (2 * simulation.setup.task.features + 1)
    return {"measured": numbers / s.clients / rounds, "formula": events / rounds * (1 + s.clients) * each}
