"""The study's file: what Optuna, and so optuna-dashboard, reads from it as trials end."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
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
from fedtune.tuning import optuna_searcher, searchers
from fedtune.tuning.optuna_searcher import OptunaSearcher, StudyJournal
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


def steps(searcher: OptunaSearcher, trials: int) -> Iterator[bool]:
    """A search without Ray: three trials at a time, each a round in turn; some are stopped, diverge or fail.

    After each round: whether its trial has ended.  It goes on from what the searcher has.
    """
    begun = [t for t in searcher.study.trials if t.state == TrialState.RUNNING]
    running = {t.user_attrs["trial"]: len(t.intermediate_values) for t in begun}
    new = iter(range(len(searcher.study.trials), trials))
    while True:
        while len(running) < 3 and (number := next(new, None)) is not None:
            assert searcher.suggest(str(number))
            running[str(number)] = 0
        if not running:
            return
        trial = min(running, key=lambda name: (running[name], int(name)))
        running[trial] += 1
        t, how = running[trial], int(trial) % 5
        ends = {
            (1, 2): (None, True),
            (2, 3): ({METRIC: 0.1, "diverged": True, "training_iteration": t}, False),
            (3, 2): (row(trial, t), False),
        }
        end = ends.get((how, t), (row(trial, t), False) if t == ROUNDS else None)
        if end:
            searcher.on_trial_complete(trial, *end)
            del running[trial]
        else:
            searcher.on_trial_result(trial, row(trial, t))
        yield end is not None


def opened(path: Path) -> optuna.Study:
    """As optuna-dashboard opens it, or a user."""
    return optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))


def content(trial: FrozenTrial) -> dict[str, Any]:
    """All that a trial holds, but not its place in its study."""
    return {n: value for n, value in vars(trial).items() if n not in ("_number", "_trial_id")}


def assert_same(got: optuna.Study, want: optuna.Study) -> None:
    """The file has the trials of the study that have ended, all that they hold, in any order."""
    assert (got.directions, got.study_name, got.metric_names) == (want.directions, want.study_name, want.metric_names)
    ended = {t.user_attrs["trial"]: content(optuna_searcher.in_file(t)) for t in want.trials if t.state.is_finished()}
    assert {t.user_attrs["trial"]: content(t) for t in got.trials} == ended and len(got.trials) == len(ended)


SEARCHED = [
    *(("tpe", METRIC), ("nsga2", "val_acc,comm_mb"), ("cmaes", METRIC), ("gp", METRIC), ("random", METRIC)),
    *(("tpe", "val_acc,comm_mb"), ("nsga2", METRIC), ("gp", "val_acc,comm_mb"), ("random", "val_acc,comm_mb")),
]


@pytest.mark.parametrize(("name", "objectives"), first(SEARCHED, 2))
def test_the_file_holds_every_trial_that_has_ended(name: str, objectives: str, tmp_path: Path) -> None:
    searcher, path = made(name, objectives), tmp_path / "study.journal"
    journal = StudyJournal(searcher, path)
    for ended in steps(searcher, 12):
        if ended:
            journal.on_trial_complete(0, [], None)
            assert_same(opened(path), searcher.study)
    assert {t.state for t in opened(path).trials} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}


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
    journal.on_trial_complete(0, [], None)
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


def test_a_resumed_search_begins_the_file_anew_and_has_every_trial_once(tmp_path: Path) -> None:
    """Ray's saved state is older than what the killed driver wrote: trials are tried anew under other names."""
    searcher, path = made(), tmp_path / "study.journal"
    playing, journal = steps(searcher, 9), StudyJournal(searcher, path)
    for _ in itertools.islice(playing, 10):
        pass
    searcher.save(str(tmp_path / "state.pkl"))
    for _ in itertools.islice(playing, 12):
        pass
    journal.on_trial_complete(0, [], None)
    (tmp_path / "study.journal.lock").symlink_to(path)  # killed while it wrote
    again = made()
    journal = StudyJournal(again, path)
    again.restore(str(tmp_path / "state.pkl"))  # Tune does so after it has got its callbacks
    for _ in steps(again, 9):
        journal.on_trial_complete(0, [], None)
    assert sorted(t.user_attrs["trial"] for t in opened(path).trials) == [str(i) for i in range(9)]
    assert_same(opened(path), again.study)


def test_a_file_that_could_not_be_written_to_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher, path = made(), tmp_path / "study.journal"
    journal = StudyJournal(searcher, path)

    def full(self: JournalFileBackend, logs: list) -> None:
        with open(self._file_path, "a") as file:
            file.write('{"op_co')
        raise OSError(28, "No space left on device")

    for _ in steps(searcher, 6):
        with monkeypatch.context() as patch:
            if len(searcher.study.trials) == 5:
                patch.setattr(JournalFileBackend, "append_logs", full)
            journal.on_trial_complete(0, [], None)
    assert_same(opened(path), searcher.study)
