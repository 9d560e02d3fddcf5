"""The study's file while a search runs: what Optuna, and so optuna-dashboard, reads from it at any moment."""

from __future__ import annotations

import pickle
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.importance import FanovaImportanceEvaluator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from ray import tune
from support.rows import first

from fedtune.analysis import importances, plots
from fedtune.core.metrics import METRIC, worst
from fedtune.core.objectives import Goal, parse
from fedtune.runs import logs
from fedtune.tuning import searchers
from fedtune.tuning.callbacks import study_journal
from fedtune.tuning.callbacks.study_journal import PERIOD, StudyJournal
from fedtune.tuning.optuna_searcher import OptunaSearcher
from fedtune.tuning.space import Space

RANGES = {"lam": tune.loguniform(1e-3, 10), "lr": tune.uniform(0.01, 0.3), "n": tune.randint(1, 9)}
MIXED = RANGES | {"optimizer": tune.choice(["sgd", "adam"])}
ROUNDS = 5


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna says that it made a study."""
    monkeypatch.setattr(optuna.logging.get_logger("optuna"), "level", optuna.logging.ERROR)


def made(name: str = "tpe", objectives: str = METRIC) -> OptunaSearcher:
    domains = RANGES if name == "cmaes" else MIXED
    searcher = searchers.searcher(name, Space(domains, []), [], [], seed=3, study="s", goal=Goal(parse(objectives)))
    assert isinstance(searcher, OptunaSearcher)
    return searcher


def row(trial: str, t: int) -> dict[str, Any]:
    value = random.Random(f"{trial} {t}").random()
    figures = {METRIC: value, "comm_mb": 1.5 * t, "test_acc": value / 2, "round": t, "training_iteration": t}
    return figures | {"complete": t == ROUNDS}


class Driver:
    """A search without Ray: three trials at a time, each a round in turn; some are stopped, diverge or fail."""

    def __init__(self, searcher: OptunaSearcher, path: Path, trials: int) -> None:
        self.searcher, self.trials, self.path = searcher, trials, path
        self.running: dict[str, int] = {}
        self.begun = 0

    def step(self) -> None:
        """One round of one trial."""
        while len(self.running) < 3 and self.begun < self.trials:
            assert self.searcher.suggest(str(self.begun))
            self.running[str(self.begun)] = 0
            self.begun += 1
        trial = min(self.running, key=lambda name: (self.running[name], int(name)))
        self.running[trial] += 1
        t, how = self.running[trial], int(trial) % 5
        if how == 1 and t == 2:
            self.end(trial, None, error=True)
        elif how == 2 and t == 3:
            self.end(trial, {METRIC: 0.1, "diverged": True, "training_iteration": t})
        elif t == ROUNDS or (how == 3 and t == 2):
            self.end(trial, row(trial, t))
        else:
            self.searcher.on_trial_result(trial, row(trial, t))

    def end(self, trial: str, result: dict | None, error: bool = False) -> None:
        self.searcher.on_trial_complete(trial, result, error)
        del self.running[trial]

    def over(self) -> bool:
        return self.begun == self.trials and not self.running


def opened(path: Path) -> optuna.Study:
    """As optuna-dashboard opens it, or a user."""
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))


def as_written_before(searcher: OptunaSearcher, path: Path) -> optuna.Study:
    """The study as a whole, written when the search is over."""
    journal = JournalStorage(JournalFileBackend(str(path)))
    optuna.copy_study(from_study_name="s", from_storage=searcher.storage, to_storage=journal)
    return opened(path)


def content(trial: FrozenTrial) -> dict[str, Any]:
    """All that a trial holds; when it ended, to the second."""
    ended = trial.datetime_complete and round(trial.datetime_complete.timestamp())
    return vars(trial) | {"_datetime_complete": None, "datetime_complete": None, "ended": ended}


def assert_same(got: optuna.Study, want: optuna.Study, seconds: float = 2) -> None:
    assert got.directions == want.directions and got.study_name == want.study_name
    of_study = [study._storage.get_study_system_attrs(study._study_id) for study in (got, want)]
    assert of_study[0] == of_study[1] and len(got.trials) == len(want.trials)
    for one, other in zip(got.trials, want.trials, strict=True):
        left, right = content(one), content(study_journal.in_file(other))
        ends = left.pop("ended"), right.pop("ended")
        assert left == right
        assert ends == (None, None) or abs(ends[0] - ends[1]) <= seconds


SEARCHED = [
    *(("tpe", METRIC), ("nsga2", "val_acc,comm_mb"), ("cmaes", METRIC), ("gp", METRIC), ("random", METRIC)),
    *(("tpe", "val_acc,comm_mb"), ("nsga2", METRIC), ("gp", "val_acc,comm_mb"), ("random", "val_acc,comm_mb")),
]


@pytest.mark.parametrize(("name", "objectives"), first(SEARCHED, 2))
def test_the_file_holds_the_study_at_every_moment(name: str, objectives: str, tmp_path: Path) -> None:
    searcher, path = made(name, objectives), tmp_path / "study.journal"
    driver, journal, rng = Driver(searcher, path, 12), StudyJournal(searcher, path), random.Random(1)
    while not driver.over():
        driver.step()
        if rng.random() < 0.3:
            journal._update()
        if rng.random() < 0.1:
            journal._update()
            assert_same(opened(path), as_written_before(searcher, tmp_path / f"at {driver.begun} {rng.random()}"))
    journal.close()
    assert not journal._broken
    assert_same(opened(path), as_written_before(searcher, tmp_path / "whole"))
    states = [t.state for t in opened(path).trials]
    assert {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL} == set(states)


def a_search_that_diverges(
    goal: Goal, path: Path, trials: int = 24, stopped: bool = False, earlier: Path | None = None
) -> OptunaSearcher:
    """What is good hangs on lam alone; what diverges does so for its lr, and reports chance and the worst there is."""
    domains = {"lr": tune.uniform(0.0, 1.0), "lam": tune.uniform(0.0, 1.0)}
    searcher = searchers.searcher("random", Space(domains, []), [], [], seed=3, study="s", goal=goal)
    assert isinstance(searcher, OptunaSearcher)
    journal = StudyJournal(searcher, path)
    if earlier:
        searcher.learn(earlier)
    for name in map(str, range(trials)):
        config = searcher.suggest(name)
        for t in range(1, 4):
            good = config["lam"] / 2 + t / 100
            row = {METRIC: good, "val_loss": 1 - good, "comm_mb": 10 * good, "round": t, "training_iteration": t}
            if t == 3 and config["lr"] > 0.6:
                row = goal.of_diverged(0.1) | {"diverged": True, "training_iteration": t}
            if t < 3 and not (stopped and t == 2 and config["lam"] < 0.3):
                searcher.on_trial_result(name, row)
                continue
            searcher.on_trial_complete(name, row | {"complete": t == 3 and "diverged" not in row})
            break
    journal.close()
    return searcher


@pytest.mark.parametrize("objectives", [METRIC, "val_loss", "val_acc,comm_mb", "val_acc stopped", "val_acc extended"])
def test_a_report_and_a_dashboard_rank_hyperparameters_alike(
    objectives: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard asks Optuna for the importance of a file's complete trials; one that diverged has no result."""
    monkeypatch.setattr(importances, "RESAMPLES", 1)
    text, _, how = objectives.partition(" ")
    goal, path = Goal(parse(text)), tmp_path / "study.journal"
    earlier = path.with_name("earlier") if how == "extended" else None
    if earlier:
        a_search_that_diverges(goal, earlier)
    searcher = a_search_that_diverges(goal, path, stopped=how == "stopped", earlier=earlier)
    study = opened(path)
    shown = optuna.importance.get_param_importances(
        study, evaluator=FanovaImportanceEvaluator(seed=0), target=lambda t: t.values[0]
    )
    found = plots.mattered(study)
    assert found and list(found.shares) == list(shown) == ["lam", "lr"] and shown["lam"] > 0.8
    diverged = [t for t in study.trials if t.user_attrs.get("diverged")]
    assert len(diverged) >= 5 and {t.state for t in diverged} == {TrialState.PRUNED}
    if len(goal.objectives) == 1:  # what people see is the last round's value, what the sampler learns from the worst
        assert all(t.value == t.intermediate_values[2] for t in diverged)
        told = [t for t in searcher.study.trials if t.user_attrs.get("diverged")]
        assert {(t.state, t.value) for t in told} == {(TrialState.COMPLETE, worst(goal.first.name))}
    if how == "stopped":
        note = plots.importance(study).layout.title.text.replace("<br>", " ")
        assert "optuna-dashboard counts the finished trials" in re.sub("<[^>]*>", "", note)
        assert "finished" in study.user_attrs["importance"]


def test_a_running_trial_shows_its_rounds_and_what_they_cost(tmp_path: Path) -> None:
    searcher, path = made(), tmp_path / "study.journal"
    driver, journal = Driver(searcher, path, 6), StudyJournal(searcher, path)
    for _ in range(8):
        driver.step()
    journal._update()
    running = [t for t in opened(path).trials if t.state == TrialState.RUNNING]
    assert running
    for trial in running:
        name = trial.user_attrs["trial"]
        assert trial.intermediate_values == {t: row(name, t)[METRIC] for t in range(1, driver.running[name] + 1)}
        last = row(name, driver.running[name])
        assert trial.user_attrs == {
            "trial": name,
            "rounds": last["round"],
            "comm_mb": last["comm_mb"],
            "test_acc": last["test_acc"],
        }


def test_a_search_that_runs_has_the_rounds_of_its_running_trials_in_the_file(interrupted: dict[int, Path]) -> None:
    run = interrupted[24]
    logged, trials = logs.logged(run), opened(run / "study.journal").trials
    assert any(t.state == TrialState.RUNNING for t in trials) and sum(len(t.intermediate_values) for t in trials) > 8
    for trial in trials:
        rows = {r["round"]: r[METRIC] for r in logged.get(trial.user_attrs["trial"], [])}
        known = trial.intermediate_values  # its file was copied after the trials' logs, so it may be a round ahead
        assert all(rows.get(n, v) == v for n, v in known.items()) and len(known.keys() - rows.keys()) <= 1


def test_a_resumed_search_begins_the_file_anew_and_has_every_trial_once(tmp_path: Path) -> None:
    """Ray's saved state is older than what the killed driver wrote: trials are tried anew under other names."""
    searcher, path = made(), tmp_path / "study.journal"
    driver, journal = Driver(searcher, path, 9), StudyJournal(searcher, path)
    for _ in range(10):
        driver.step()
    searcher.save(str(tmp_path / "state.pkl"))
    for _ in range(12):
        driver.step()
    journal._update()
    (tmp_path / "study.journal.lock").symlink_to(path)  # killed while it wrote
    again = pickle.loads(pickle.dumps(made()))
    journal = StudyJournal(again, path)
    again.restore(str(tmp_path / "state.pkl"))  # Tune does so after it has got its callbacks
    driver = Driver(again, path, 9)
    driver.begun = len(again.study.trials)
    driver.running = {
        t.user_attrs["trial"]: len(t.intermediate_values) for t in again.study.get_trials(states=(TrialState.RUNNING,))
    }
    while not driver.over():
        driver.step()
        journal._update()
    journal.close()
    names = [t.user_attrs["trial"] for t in opened(path).trials]
    assert names == [str(i) for i in range(9)]
    assert_same(opened(path), as_written_before(again, tmp_path / "whole"))


def test_a_file_that_could_not_be_written_to_is_written_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher, path = made(), tmp_path / "study.journal"
    driver, journal = Driver(searcher, path, 6), StudyJournal(searcher, path)

    def full(self: JournalFileBackend, logs: list) -> None:
        with open(self._file_path, "a") as file:
            file.write('{"op_co')
        raise OSError(28, "No space left on device")

    for step in range(9):
        driver.step()
        with monkeypatch.context() as patch:
            if step == 5:
                patch.setattr(JournalFileBackend, "append_logs", full)
            journal.on_trial_complete(0, [], None)
    assert journal._broken
    while not driver.over():
        driver.step()
        journal.on_step_end(0, [])
    journal.close()
    assert_same(opened(path), as_written_before(searcher, tmp_path / "whole"))


def test_rounds_cost_nothing_and_the_file_is_written_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher, now = made("random"), SimpleNamespace(at=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.at)
    journal, writes = StudyJournal(searcher, tmp_path / "study.journal"), []
    append = JournalFileBackend.append_logs

    def counted(self: JournalFileBackend, logs: list) -> None:
        writes.append(len(logs))
        append(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", counted)
    assert searcher.suggest("a")
    for t in range(1, 101):
        searcher.on_trial_result("a", row("a", t) | {"complete": False})
        now.at += PERIOD / 25
        journal.on_step_end(t, [])
    assert len(writes) == 4 and sum(writes) >= 75
