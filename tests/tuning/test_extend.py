"""A search that is over goes on: more rounds for its best trials; and is played again, to the same numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from support.searches import QUICK, configuration, searched

from fedtune.commands import replay, resume
from fedtune.core.about import FORMAT
from fedtune.core.budget import Budget
from fedtune.engine.built_in import ENGINE
from fedtune.engine.simulation import Seeds, train
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import tables as results
from fedtune.runs.folder import StudyFolder
from fedtune.studies import extending
from fedtune.tuning.space_facts import key
from fedtune.tuning.trainable import FederatedTrainable

SMALL = Scenario(clients=4, rounds=4)


pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory):
    """Four trials at once two by two, of which ASHA stops some after two rounds of four."""
    return searched(
        tmp_path_factory.mktemp("before"), "--algo fedproto --trials 6 --rounds 4 --grace 2 --max-concurrent 2 " + QUICK
    )


@pytest.fixture(scope="module")
def longer(before):
    assert resume.main([str(before.folder), "--rounds", "+3", "--top", "2", "--no-dashboard"]) == 0
    folder = before.folder.with_name("run+3rounds")
    tables = (pd.read_parquet(folder / f"{n}.parquet") for n in ("trials", "rounds"))
    return folder, *tables


def test_the_best_go_on_as_if_they_had_never_stopped(before, longer) -> None:
    _, trials, rounds = longer
    finished = before.trials[before.trials["status"] == "finished"]
    best = finished.sort_values(["last_val_acc", "last_val_loss"], ascending=[False, True])["trial"][:2]
    on = trials[trials["continues"].notna()]
    assert (
        on["continues"].tolist() == best.tolist() and (on["rounds"] == 7).all() and (on["status"] == "finished").all()
    )
    for trial in on.to_dict("records"):
        rows = rounds[rounds["trial"] == trial["trial"]].to_dict("records")
        whole = list(train(Experiment(algorithm="fedproto", scenario=SMALL.override(rounds=7)), configuration(trial)))
        assert [r["round"] for r in rows] == [r["round"] for r in whole] == list(range(1, 8))
        for there, here in zip(rows, whole, strict=True):
            for name in ("val_acc", "val_loss", "train_loss", "comm_mb"):
                assert there[name] == here[name]
            if there["round"] in (4, 7):  # the last one then, and now
                assert there["test_acc"] == here["test_acc"]


def test_every_trial_stands_once_and_the_short_ones_count_as_stopped(before, longer) -> None:
    _, trials, rounds = longer
    rest = trials[trials["continues"].isna()]
    assert len(trials) == len(before.trials) and set(rest["status"]) == {"stopped"}
    assert set(rest["trial"]) | set(trials["continues"].dropna()) == set(before.trials["trial"])
    assert not rounds.duplicated(["trial", "round"]).any()
    assert results.best_trial(trials)["rounds"] == 7


def test_the_new_study_holds_the_short_ones_as_pruned(before, longer) -> None:
    folder, trials, _ = longer
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    told = {t.user_attrs["trial"]: t for t in optuna.load_study(study_name=None, storage=storage).trials}
    assert set(told) == set(trials["trial"])
    for trial in trials.itertuples():
        assert told[trial.trial].state.name == ("COMPLETE" if trial.status == "finished" else "PRUNED")
        assert told[trial.trial].value == trial.last_val_acc


@pytest.mark.long  # a search of Ray's
def test_an_extended_search_is_extended_again(longer) -> None:
    folder, trials, _ = longer
    assert resume.main([str(folder), "--rounds", "1", "--top", "1", "--name", "third", "--no-dashboard"]) == 0
    third = pd.read_parquet(folder.with_name("third") / "trials.parquet")
    best = results.best_trial(trials)
    assert third["continues"].dropna().tolist()[-1] == best["trial"] and results.best_trial(third)["rounds"] == 8
    assert json.loads((folder.with_name("third") / "run.json").read_text())["extends"] == "run+3rounds"


def test_a_replay_tells_what_is_not_the_same(before, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other = tmp_path / "run"
    shutil.copytree(before.folder, other)
    log = next(iter(other.glob(f"*-{before.trials['trial'][1]}/result.json")))
    log.write_text(log.read_text().replace('"val_acc": 0.', '"val_acc": 0.0'))
    assert replay.main([str(other), "--no-dashboard"]) == 1
    said = capsys.readouterr().out
    assert f"1 of {len(before.trials)} trials have different numbers: {before.trials['trial'][1]}" in said
    assert "repeated: the largest relative difference is 0.9, in val_acc\n" in said  # and nothing is another than then


def test_a_trial_goes_on_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    """In a fresh actor and in a reused one; Tune's iteration is our round."""
    chosen, data = {"lr": 0.02}, [partitioning.make(SMALL, 0)]
    experiment = Experiment(algorithm="fedproto", scenario=SMALL.override(rounds=6), trainer=ENGINE)
    source, rows = Seeds(experiment, chosen, dict(enumerate(data))), []
    for t in range(1, 7):
        rows.append(source.step())
        if t == 4:
            source.save(tmp_path)
    onward = {key(chosen): (str(tmp_path), 5.0)}

    class Actor(FederatedTrainable):
        def setup(self, config):  # as Tune calls it through with_parameters
            super().setup(config, experiment, data, Budget("rounds", 6), onward)

    actor = Actor(dict(chosen))
    for reuse in (False, True):
        if reuse:
            assert actor.reset({"lr": 0.3}) and actor.train()["training_iteration"] == 1  # another one, from its start
            assert actor.reset(dict(chosen))
        for row in rows[4:]:
            got = actor.train()
            assert 5 < got["time_total_s"] < 60
            assert got["training_iteration"] == got["round"] == row["round"]
            assert all(got[n] == row[n] for n in ("val_acc", "val_loss", "train_loss", "comm_mb"))
        assert got["complete"]


def test_the_last_checkpoint_that_can_be_read_is_taken(tmp_path: Path) -> None:
    run, earlier = tmp_path / "run", tmp_path / "earlier"
    for folder, record in ((run, {"format": FORMAT, "extends": "earlier"}), (earlier, {"format": FORMAT})):
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(record))
    sound = earlier / "fedavg-a" / "checkpoint_000001"
    simulation = Seeds(Experiment(algorithm="fedavg", scenario=SMALL), {}, {0: partitioning.make(SMALL, 0)})
    for folder in (sound, earlier / "fedavg-a" / "checkpoint_000002", earlier / "fedavg-b" / "checkpoint_000000"):
        folder.mkdir(parents=True)
        simulation.save(folder)
    whole = (sound / "0" / "state.pt").read_bytes()
    (earlier / "fedavg-a" / "checkpoint_000002" / "0" / "state.pt").write_bytes(whole[: len(whole) // 2])
    simulation.step()
    simulation.save(sound)
    rounds = pd.DataFrame({"trial": ["a", "a", "b"], "round": [1, 2, 1], "seconds": 2.0, "eval_seconds": 0.5})
    assert extending.checkpoint(StudyFolder(run), "a", rounds, ENGINE.saved_round) == (str(sound), 2.5)
    assert extending.checkpoint(StudyFolder(run), "c", rounds, ENGINE.saved_round) == (None, 0.0)


@pytest.mark.parametrize(
    ("options", "more", "rule"),
    [
        ({"algo": "fedkd"}, "--rounds", "fedkd may depend on how many rounds a trial has"),
        ({"algo": "fedavg", "fields": {"privacy": "client", "epsilon": 8.0}, "set": {"update_clip": 1.0}}, "--rounds",
         "the noise of --epsilon depends on how many rounds a trial has"),
        ({"trials_drawn": "geometric"}, "--trials", "more trials would void the ε of the choice"),
    ],
)  # fmt: skip
def test_a_plan_over_all_rounds_or_a_drawn_number_of_trials_is_not_extended(
    options, more, rule, before, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = tmp_path / "run"
    shutil.copytree(before.folder, other)
    record = json.loads((other / "run.json").read_text())
    fields = {**record["options"]["fields"], **options.get("fields", {})}
    record["options"] |= {**options, "fields": fields}
    record["defaults"] = {}  # another algorithm's
    (other / "run.json").write_text(json.dumps(record))
    assert resume.main([str(other), more, "+2"]) == 2
    assert rule in capsys.readouterr().err
