"""Searches, whole: small ones, on the digits, in this process."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from support.outcomes import outcome_of
from support.searches import QUICK, configuration, searched

from fedtune.commands import run, search
from fedtune.core.budget import Budget
from fedtune.core.objectives import BY_ACCURACY
from fedtune.data import datasets
from fedtune.engine.built_in import ENGINE
from fedtune.engine.simulation import train
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import tables
from fedtune.studies import fresh_seeds

SMALL = Scenario(clients=4, rounds=6)
pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.fixture(scope="module")
def gfpl(tmp_path_factory):
    """Six trials of GFPL on two actors, events from round 2 on, a final check on one seed.

    Clients train, and the classifier is retrained, for one epoch: a trial of 39 takes longer than all that is asked of
    the others.
    """
    return searched(
        tmp_path_factory.mktemp("gfpl"),
        "--algo gfpl --scenario digits-w4 --trials 6 --clients 4 --rounds 6 --set first=2 --set every=2 "
        "--set retrain_epochs=1 --set local_epochs=1 --max-concurrent 2 --no-dashboard --final-seeds 1",
    )


def test_the_first_trial_is_the_default_configuration(gfpl):
    own = {"lam": 2.0, "threshold": 1.0, "pseudo": 16, "retrain_lr": 0.03}  # components has no effect on so few rows
    assert configuration(gfpl.trials.iloc[0]) == own | {"lr": 0.03, "momentum": 0.9}


def test_no_trial_ends_before_the_first_effect_and_rounds_are_there_once(gfpl):
    assert gfpl.record["grace"] == 3 and gfpl.record["rungs"] == [3]
    assert len(gfpl.trials) == 6 and gfpl.trials["rounds"].isin([3, 6]).all()
    assert (gfpl.trials["status"] == gfpl.trials["rounds"].map({3: "stopped", 6: "finished"})).all()
    played = gfpl.rounds.groupby("trial")["round"].apply(list)
    assert played.to_dict() == {t.trial: list(range(1, t.rounds + 1)) for t in gfpl.trials.itertuples()}


def test_every_trial_equals_the_same_configuration_played_alone_bit_for_bit(gfpl):
    """Actors are reused and two run at once; neither may leave a trace."""
    experiment = Experiment(
        algorithm="gfpl", scenario=SMALL, pinned={"first": 2, "every": 2, "retrain_epochs": 1, "local_epochs": 1}
    )
    for _, trial in gfpl.trials.iterrows():
        rows = gfpl.rounds[gfpl.rounds["trial"] == trial["trial"]].to_dict("records")
        for there, here in zip(rows, train(experiment, configuration(trial)), strict=False):
            for metric in ("val_acc", "val_loss", "test_acc", "train_loss", "comm_mb", "test_acc_etf"):
                if metric.startswith("test_") and here["round"] not in (3, 6):  # the rung, and the last one
                    assert np.isnan(there[metric]), (trial["trial"], here["round"])
                else:
                    assert there[metric] == here[metric], (trial["trial"], metric)
        assert trial["test_round"] == trial["rounds"] and trial["last_test_acc"] == rows[-1]["test_acc"]


def test_the_folder_says_what_was_found_and_how(gfpl):
    best = yaml.safe_load((gfpl.folder / "best.yaml").read_text())
    chosen = tables.best_trial(gfpl.trials)
    assert best["found"]["trial"] == chosen["trial"] and best["found"]["val_acc"] == chosen["last_val_acc"]
    assert {k: best["hyperparameters"][k] for k in configuration(chosen)} == configuration(chosen)
    assert gfpl.record["state"] == "finished" and gfpl.record["seed"] == 0
    assert sum(gfpl.record["status"].values()) == 6
    assert {"torch", "ray", "optuna", "python", "fedtune"} <= set(gfpl.record["versions"])
    assert {row["configuration"] for row in gfpl.record["final"]} <= {"best", "default"}
    assert all(row["seed"] == 1 and 0 <= row["test_acc"] <= 1 for row in gfpl.record["final"])


def test_the_best_configuration_plays_again_to_the_same_numbers(gfpl, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    assert run.main(["--config", str(gfpl.folder / "best.yaml"), "--output", str(rows)]) == 0
    last = json.loads(rows.read_text().splitlines()[-1])
    chosen = tables.best_trial(gfpl.trials)
    assert (last["val_acc"], last["test_acc"]) == (chosen["last_val_acc"], chosen["last_test_acc"])
    assert f"validation accuracy {100 * last['val_acc']:.2f} %" in capsys.readouterr().out


def test_the_final_check_is_the_same_play_on_a_fresh_seed(gfpl):
    best = yaml.safe_load((gfpl.folder / "best.yaml").read_text())
    *_, last = train(Experiment(algorithm="gfpl", scenario=SMALL, seed=1, pinned=best["hyperparameters"]), {})
    row = next(r for r in gfpl.record["final"] if r["configuration"] == "best")
    assert (row["test_acc"], row["val_acc"]) == (last["test_acc"], last["val_acc"])


ONE_BY_ONE = "--algo fedproto --trials 4 --rounds 4 --max-concurrent 1 --seed 3 " + QUICK


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A search whose every choice its seed determines."""
    return searched(tmp_path_factory.mktemp("honest"), ONE_BY_ONE)


def test_labels_of_test_rows_do_not_change_the_search(honest, tmp_path, monkeypatch):
    """Test labels are replaced by noise: the same configurations are tried, stopped and chosen."""
    deal = partitioning.partition

    def noisy(data, scenario, seed):
        dealt = deal(data, scenario, seed)
        y = dealt.y.copy()
        real = np.arange(dealt.test.rows.shape[1]) < dealt.test.counts[:, None]
        rows = dealt.test.rows[real]
        y[rows] = np.random.default_rng(0).integers(0, 10, len(rows))
        return dealt._replace(y=y)

    monkeypatch.setattr(partitioning, "partition", noisy)
    blind = searched(tmp_path, ONE_BY_ONE)
    columns = [c for c in honest.trials if c.startswith(tables.CONFIG)] + ["status", "rounds", "last_val_acc"]
    pd.testing.assert_frame_equal(honest.trials[columns], blind.trials[columns])
    assert tables.best_trial(honest.trials).name == tables.best_trial(blind.trials).name
    assert not (honest.trials["last_test_acc"] == blind.trials["last_test_acc"]).all()


@pytest.mark.long  # a search of Ray's
def test_a_search_in_which_everything_diverges_says_so(tmp_path, capsys):
    space = tmp_path / "space.py"
    space.write_text("SPACE = [{'lam': 50.0}]")
    got = searched(
        tmp_path,
        f"--algo fedproto --space {space} --trials 1 --rounds 6 --set lr=1 --set momentum=0.99 --scheduler none "
        + QUICK.replace("--final-seeds 0", "--final-seeds 1"),
        status=1,
    )
    assert got.trials["status"].tolist() == ["diverged"] and got.record["state"] == "nothing found"
    assert "no trial ended with a finite result (the first: diverged in round" in capsys.readouterr().out


@pytest.mark.long  # a search of Ray's
def test_a_time_budget_ends_the_search(tmp_path, capsys):
    arguments = f"--algo local --trials 500 --rounds 40 --time-budget 2 --name run --storage-path {tmp_path} " + QUICK
    status = search.main(arguments.split())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    # on a busy machine the time can be over before the first round is
    assert (status, record["state"]) in [(0, "finished"), (1, "nothing found")]
    assert len(pd.read_parquet(tmp_path / "run" / "trials.parquet")) < 500
    assert "time budget reached: " in capsys.readouterr().out


@pytest.mark.long  # searches of Ray's; tests/golden has the other searchers and schedulers
@pytest.mark.parametrize("arguments", ["--scheduler hyperband --searcher gp", "--scheduler median --searcher cmaes"])
def test_every_scheduler_and_searcher_ends_with_a_best_configuration(arguments, tmp_path):
    got = searched(tmp_path, f"--algo fedproto --trials 4 --rounds 3 {arguments} " + QUICK)
    assert len(got.trials) == 4 and set(got.trials["status"]) <= {"finished", "stopped"}
    assert (got.folder / "best.yaml").exists() and got.trials["config/lam"].iloc[0] == 1.0


def test_the_final_check_reports_a_diverged_run_as_such():
    data = datasets.load("digits")
    experiment = Experiment(
        algorithm="fedproto", scenario=SMALL, pinned={"lr": 1.0, "momentum": 0.99, "lam": 50.0}, trainer=ENGINE
    )
    federation = partitioning.partition(data, SMALL, 0)
    row = fresh_seeds.last_round(outcome_of(experiment, {}, federation, Budget("rounds", 6)), BY_ACCURACY)
    assert np.isnan(row["test_acc"]) and "diverged in round" in row["reason"]
