"""What a trial reports: which entries of its result are metrics."""

from __future__ import annotations

from typing import Any

import pytest
from support.actors import SETTING, LocalActor
from support.rows import first

from fedtune.core.errors import UserError
from fedtune.core.metrics import METRICS, REPORTED, metrics_in
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment


@pytest.mark.parametrize(
    ("algorithm", "config", "more"),
    first([("fesem", {}, {"clusters_occupied"}), ("gfpl", {"start": 2, "every": 2}, {"val_acc_etf"})], 1),
)
def test_a_result_names_those_of_its_metrics_that_no_table_declares(
    algorithm: str, config: dict[str, Any], more: set[str]
) -> None:
    """What the algorithm reports, and accuracies of its heads; no entry of Tune's is a metric."""
    actor = LocalActor(config={"algorithm": algorithm, **config})
    simulation = Simulation(Experiment(algorithm=algorithm, scenario=SETTING), config, partitioning.make(SETTING, 0))
    for _ in range(2):
        row = actor.train()
        trained = {name for name, value in simulation.step().items() if value is not None}
        assert set(metrics_in(row)) - {"spent"} == trained
        assert set(row.get(REPORTED, ())) == trained - {"round", *METRICS}
    assert more <= set(row.get(REPORTED, ()))


def test_a_trial_that_could_not_begin_has_nothing_to_save_but_its_reason() -> None:
    """A Tuner of the user's own saves each trial at its end."""
    actor = LocalActor(config={"lr": -1.0})
    row = actor.train()
    assert row["broken"] and row["done"] and row["reason"].startswith("lr must be a number in")
    with pytest.raises(UserError, match="lr must be a number in"):
        actor.save_checkpoint("")
