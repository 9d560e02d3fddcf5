"""How clients train by default, where no paper says it: read from FedAvg's sweeps, which are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedtune.experiment.scenario import Scenario
from fedtune.experiment.scenarios import OWN, SCENARIOS, SWEPT
from fedtune.experiment.user_scenario import taken
from fedtune.trainables.fedavg import FedAvg
from fedtune.tuning.options.options import ExperimentOptions

TABLES = Path(__file__).parents[2] / "analysis/results/tables"
MADE_FROM = {
    ("digits", "cnn8"): "fedavg-sweep-digits-shards",
    ("digits", "mlp"): "fedavg-sweep-digits-mlp",
    ("fashion-mnist", "fedproto-cnn"): "fedavg-sweep-gfpl-fmnist-few",
}
ADAM = {"optimizer": "adam"}


def steadiest(table: pd.DataFrame) -> dict[str, float]:
    """By epochs: momentum and rate whose worse neighbour, at a third or three times the rate, is best; the fewest
    epochs whose own accuracy is within one point of that with more.
    """
    last = table[table["round"] == table["round"].max()]
    if "local_epochs" not in last:
        last = last.assign(local_epochs=1)
    accuracy = last.groupby(["local_epochs", "momentum", "lr"])["val_acc"].agg(lambda v: v.mean(skipna=False))
    by_rate = accuracy.fillna(0.0).unstack()  # a run that diverged is no neighbour to have
    worse = by_rate.shift(1, axis=1).combine(by_rate.shift(-1, axis=1), lambda a, b: a.where(a < b, b)).iloc[:, 1:-1]
    found = {epochs: of.stack().idxmax() for epochs, of in worse.groupby(level=0)}
    reached = {epochs: accuracy[place] for epochs, place in found.items()}
    fewest = min(epochs for epochs, value in reached.items() if value > max(reached.values()) - 0.01)
    _, momentum, lr = found[fewest]
    return {"lr": lr, "momentum": momentum, "local_epochs": fewest}


@pytest.mark.parametrize("of", SWEPT, ids="-".join)
def test_defaults_are_those_of_the_sweep(of: tuple[str, str]) -> None:
    assert steadiest(pd.read_parquet(TABLES / f"{MADE_FROM[of]}.parquet")) == SWEPT[of] | {"local_epochs": 1}
    assert Scenario.local_epochs == 1


@pytest.mark.parametrize(
    ("scenario", "fields", "fixed", "training"),
    [
        ("digits-shards", {}, {}, SWEPT["digits", "cnn8"]),
        ("digits-w4", {"model": "mlp"}, {}, SWEPT["digits", "mlp"]),
        ("digits-shards", {"momentum": 0.2}, {}, {"lr": 0.03, "momentum": 0.2}),
        ("digits-shards", {}, {"lr": 0.2}, {"lr": 0.2, "momentum": 0.9}),
        ("digits-shards", {}, ADAM, {"lr": 0.01, "momentum": 0.5}),  # the sweep was of SGD
        ("digits-shards", {"model": "cnn8-wide"}, {}, {"lr": 0.01, "momentum": 0.5}),
        ("gfpl-fmnist-few", {}, {}, SWEPT["fashion-mnist", "fedproto-cnn"]),
        ("gfpl-fmnist-w4", {}, {}, {"lr": 0.01, "momentum": 0.5}),  # a paper's
        ("fedsa-digits-silo", {}, {}, {"lr": 0.01, "momentum": 0.0}),
    ],
)
def test_a_paper_the_user_or_the_sweep_says_how_clients_train(
    scenario: str, fields: dict, fixed: dict, training: dict
) -> None:
    experiment = ExperimentOptions(algo="fedavg", scenario=scenario, fields=fields, set=fixed).experiment()
    found = experiment.configuration({})
    assert {name: found[name] for name in training} == training


@pytest.mark.parametrize(("file", "fixed", "lr"), [("own", {}, 0.03), ("digits-own", {}, 0.03), ("own", ADAM, 0.01)])
def test_own_data_have_the_rate_of_the_sweeps_whatever_their_name(
    file: str, fixed: dict, lr: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(f"{file}.npz", x=np.zeros((200, 8)), y=np.arange(200) % 10)
    experiment = ExperimentOptions(algo="fedavg", fields={"dataset": f"{file}.npz"}, set=fixed).experiment()
    found = experiment.configuration({})
    assert (found["lr"], found["momentum"]) == (lr, 0.5)


def test_a_preset_with_another_optimiser_has_not_the_sweeps_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "presets", {"as_text": {"optimizer": "adam"}})
    experiment = ExperimentOptions(algo="fedavg", scenario="digits-shards", preset="as_text").experiment()
    assert experiment.configuration({})["lr"] == 0.01


def test_what_is_listed_is_what_is_trained() -> None:
    for name, scenario in SCENARIOS.items():
        assert taken(name, {})[0] == scenario
    assert OWN.lr == min(of["lr"] for of in SWEPT.values())
