"""What a trial may use and is judged by: rounds, megabytes or seconds; one objective or two; one seed or more."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml
from ray import tune
from support.outcomes import outcome_of
from support.searches import QUICK, configuration, searched

from fedtune.core.budget import UNITS, Budget
from fedtune.core.errors import UserError
from fedtune.core.metrics import METRIC
from fedtune.core.objectives import BY_ACCURACY
from fedtune.engine import simulation
from fedtune.engine.built_in import ENGINE
from fedtune.engine.simulation import train
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import pareto, tables
from fedtune.runs.files import RunFiles
from fedtune.studies import fresh_seeds
from fedtune.tuning import searchers, space
from fedtune.tuning.space import checked

SMALL = Scenario(clients=4, rounds=5)


pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory):
    """Two objectives, two seeds a trial, a budget in megabytes of which 7 of FedAvg's rounds remain."""
    return searched(
        tmp_path_factory.mktemp("two"),
        "--algo fedavg --trials 6 --rounds 20 --seeds-per-trial 2 --budget-unit mb --budget 1.6 --grace 0.5 "
        "--objective val_acc,comm_mb --max-concurrent 2 --set local_epochs=1 " + QUICK,
    )


def test_a_trial_is_the_mean_of_its_seeds(two) -> None:
    first = two.trials.iloc[0]
    rows = two.rounds[two.rounds["trial"] == first["trial"]].to_dict("records")
    pinned = {"local_epochs": 1}
    alone = [
        list(
            train(
                Experiment(
                    algorithm="fedavg", scenario=SMALL.override(rounds=20), seed=seed, pinned=pinned, trainer=ENGINE
                ),
                configuration(first),
            )
        )
        for seed in (0, 1)
    ]
    assert 1 < len(rows) < 20
    assert not np.isnan(rows[-1]["test_acc"])
    for there, a, b in zip(rows, *alone, strict=False):
        tested = [n for n in ("test_acc", "test_acc_worst10") if not np.isnan(there["test_acc"])]
        for name in ("val_acc", "comm_mb", "up_floats", *tested):
            assert there[name] == (a[name] + b[name]) / 2
        for name in ("val_loss", "train_loss"):  # seeds train as one stack: float32 differs in its last digits
            assert there[name] == pytest.approx((a[name] + b[name]) / 2, rel=1e-6)
        for name in ("val_acc", *tested[:1]):
            assert there[f"{name}_se"] == pytest.approx(abs(a[name] - b[name]) / 2, abs=1e-15)


def test_megabytes_end_a_trial_and_make_its_rungs(two) -> None:
    a_round = two.rounds.query("round == 1")["comm_mb"].iloc[0]
    most = int(np.ceil(1.6 / a_round))  # the first round in which the budget is used up
    assert 1 < most < 20
    last = two.rounds.groupby("trial")["comm_mb"].last()
    for trial in two.trials.itertuples():
        assert trial.test_round == trial.rounds  # wherever it ended
        assert trial.rounds == (most if trial.status == "finished" else int(np.ceil(0.5 / a_round)))
        assert (last[trial.trial] >= 1.6) == (trial.status == "finished")
    assert {"finished", "stopped"} == set(two.trials["status"])
    assert two.record["rungs"] == [0.5, 1.5] and two.record["budget"] == {"unit": "mb", "limit": 1.6, "since": 1}
    assert (two.rounds["spent"] == two.rounds["comm_mb"]).all()


def test_the_front_is_over_every_round_of_every_trial(two) -> None:
    found = pd.read_parquet(two.folder / "front.parquet")
    points = list(zip(two.rounds["val_acc"], two.rounds["comm_mb"], strict=True))

    def beaten(p: tuple[float, float]) -> bool:
        return any(q[0] >= p[0] and q[1] <= p[1] and q != p for q in points)

    assert set(zip(found["val_acc"], found["comm_mb"], strict=True)) == {p for p in points if not beaten(p)}
    assert len(found) > 1 and set(found["trial"]) <= set(two.trials["trial"])
    assert found["config/lr"].notna().all()
    study = optuna.load_study(
        study_name=None,
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(two.folder / "study.journal"))
        ),
    )
    ends = {t.user_attrs["trial"]: t for t in study.trials}
    for trial in two.trials.itertuples():
        told = ends[trial.trial]
        assert told.state.name == {"finished": "COMPLETE", "stopped": "PRUNED"}[trial.status]
        assert told.values == ([trial.last_val_acc, trial.comm_mb] if trial.status == "finished" else None)


def test_suggestions_are_written_down_in_their_order(two) -> None:
    lines = [json.loads(line) for line in RunFiles(two.folder).suggestions_file.read_text().splitlines()]
    assert [line["trial"] for line in lines] == two.trials["trial"].tolist()
    assert [line["config"] for line in lines] == [configuration(t) for t in two.trials.to_dict("records")]


@pytest.mark.long  # a search of Ray's
def test_seconds_are_a_budget_too(tmp_path: Path) -> None:
    got = searched(
        tmp_path,
        "--algo local --trials 2 --rounds 500 --budget-unit seconds --budget 0.5 --scheduler none --max-concurrent 1 "
        "--searcher random " + QUICK,
    )
    assert set(got.trials["status"]) == {"finished"} and (got.trials["rounds"] < 500).all()
    for _, rows in got.rounds.groupby("trial"):
        assert rows["spent"].is_monotonic_increasing
        assert (rows["spent"].iloc[:-1] < 0.5).all() and rows["spent"].iloc[-1] >= 0.5


def test_the_final_check_has_the_budget_of_the_search() -> None:
    """A trial of so many megabytes is checked over so many."""
    data, experiment = partitioning.make(SMALL, 0), Experiment(algorithm="fedavg", scenario=SMALL, trainer=ENGINE)
    rows = list(train(experiment, {}, data))
    limit = rows[2]["comm_mb"]
    got = fresh_seeds.last_round(outcome_of(experiment, {}, data, Budget("mb", limit)), BY_ACCURACY)
    assert (got["comm_mb"], got["test_acc"]) == (limit, rows[2]["test_acc"])
    assert (
        fresh_seeds.last_round(outcome_of(experiment, {}, data, Budget("rounds", 5)), BY_ACCURACY)["test_acc"]
        == rows[4]["test_acc"]
    )


def test_best_yaml_lasts_as_long_as_the_best_trial_did(two) -> None:
    best = yaml.safe_load((two.folder / "best.yaml").read_text())
    chosen = tables.best_trial(two.trials, "mb")
    assert best["overrides"]["rounds"] == best["found"]["rounds"] == chosen["rounds"] < 20
    assert best["found"]["seeds"] == 2


def test_where_nothing_finished_the_best_is_among_those_that_used_most() -> None:
    rows = [("a", "stopped", 40, 2.0, 9.0, 1.0, 0.5, 1.0), ("b", "stopped", 5, 18.0, 1.0, 3.0, 0.9, 1.0)]
    names = ["trial", "status", "rounds", "comm_mb", "seconds", "last_sim_seconds", "last_val_acc", "last_val_loss"]
    trials = pd.DataFrame(rows, columns=names)
    found = [tables.best_trial(trials, unit)["trial"] for unit in UNITS]
    assert found == ["a", "b", "a", "b"]


def test_rungs_in_device_seconds_are_reached_once() -> None:
    budget = Budget("sim_seconds", limit=30.0)
    rows = [
        {"round": t, "sim_seconds": 4.0 * t, "round_seconds": 4.0, "seconds": 0.1, "eval_seconds": 0.1}
        for t in range(1, 9)
    ]
    assert [row["round"] for row in rows if budget.passed([10.0, 20.0], row, 0.0)] == [3, 5]
    assert [budget.reached(row, 0.0) for row in rows] == [False] * 7 + [True] and budget.text == "30 device seconds"
    assert budget.share(rows[2], 0.0) == 0.4


SPENT = [("rounds", {}), ("mb", {"spent": 7.0}), ("seconds", {"spent": 3.5}), ("sim_seconds", {"spent": 6.0})]


@pytest.mark.parametrize(("unit", "want"), SPENT)
def test_nothing_counts_as_used_before_a_trial_may_be_judged(unit: str, want: dict) -> None:
    budget = Budget(unit, limit=3.5, since=4)
    row = {"round": 4, "comm_mb": 7.0, "sim_seconds": 6.0}
    assert budget.spent(row, 3.5) == want and budget.reached(row, 3.5)
    early = {"round": 3, "comm_mb": 1.0, "sim_seconds": 2.0}
    assert budget.spent(early, 3.0) == ({} if unit == "rounds" else {"spent": 0.0})
    assert not budget.reached(early, 3.0)


def test_checkpoints_hold_every_seed(tmp_path: Path) -> None:
    data = [partitioning.make(SMALL, seed) for seed in (0, 1)]
    one, other = (
        simulation.Seeds(Experiment(algorithm="fedproto", scenario=SMALL), {}, dict(enumerate(data))) for _ in range(2)
    )
    for _ in range(2):
        one.step()
    one.save(tmp_path)
    other.load(tmp_path)
    a, b = one.step(), other.step()
    assert other.round == 3 and {n: v for n, v in a.items() if "seconds" not in n} == {
        n: v for n, v in b.items() if "seconds" not in n
    }


@pytest.mark.parametrize("second", ["comm_mb", "seconds"])
def test_the_front_equals_its_definition(second: str) -> None:
    rng = np.random.default_rng(3)
    points = pd.DataFrame({METRIC: rng.integers(0, 9, 200) / 9, second: rng.integers(1, 40, 200).astype(float)})
    points.loc[7, METRIC] = np.nan
    found = pareto.front(points, (METRIC, second))
    real = {p for p in zip(points[METRIC], points[second], strict=True) if p[0] == p[0]}
    want = {p for p in real if not any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in real)}
    assert set(zip(found[METRIC], found[second], strict=True)) == want and len(found) == len(want)
    assert found[METRIC].is_monotonic_increasing and found[second].is_monotonic_increasing


CONDITIONAL: dict = {
    "momentum": space.when(tune.uniform(0.1, 0.9), optimizer="sgd"),
    "optimizer": tune.choice(["sgd", "adam"]),
    "lr": tune.loguniform(0.001, 0.1),
}


def test_a_space_with_conditions_suggests_what_exists_and_survives_pickling() -> None:
    made = checked("x", CONDITIONAL, Experiment(algorithm="fedavg", scenario=SMALL))
    assert made.names == ["optimizer", "lr", "momentum"]
    assert made.text()["momentum"] == "0.1..0.9 where optimizer is sgd"
    point, outside = space.inside(made, Experiment(algorithm="fedavg", scenario=SMALL).configuration({}))
    searcher = searchers.searcher("tpe", made, [point], [outside], 3, "s")
    searcher = pickle.loads(pickle.dumps(searcher))
    seen = [searcher.suggest(str(i)) for i in range(30)]
    for i, chosen in enumerate(seen):
        assert ("momentum" in chosen) == (chosen["optimizer"] == "sgd")
        searcher.on_trial_complete(str(i), {METRIC: 0.5, "training_iteration": 1, "complete": True})
    assert {c["optimizer"] for c in seen} == {"sgd", "adam"}
    assert seen[0] == point | outside


def test_a_condition_on_what_is_pinned_is_decided_at_once() -> None:
    raw = {"momentum": CONDITIONAL["momentum"], "lr": CONDITIONAL["lr"]}
    assert checked("x", raw, Experiment(algorithm="fedavg", scenario=SMALL, pinned={"optimizer": "adam"})).names == [
        "lr"
    ]
    kept = checked("x", raw, Experiment(algorithm="fedavg", scenario=SMALL, pinned={"optimizer": "sgd"}))
    assert kept.names == ["momentum", "lr"] and not kept.conditions


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"lr": space.when(tune.uniform(0.1, 0.2), optimizer="sdg")}, "optimizer must be one of"),
        ({"momentum": space.when(tune.uniform(0.1, 0.2), optimizer="adam")}, "is empty"),
    ],
)
def test_unusable_conditions_are_refused(raw: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked("x", raw, Experiment(algorithm="fedavg", scenario=SMALL))
