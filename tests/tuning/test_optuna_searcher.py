"""Our searcher suggests what Ray's own OptunaSearch would, asked and told alike."""

from __future__ import annotations

import logging
import pickle
import random
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray import tune
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from fedtune.core.metrics import METRIC
from fedtune.core.objectives import Goal, parse
from fedtune.tuning import searchers, space_facts
from fedtune.tuning.optuna_searcher import OptunaSearcher, StudyJournal, distributions
from fedtune.tuning.space import Space, met

RANGES = {
    "lam": tune.loguniform(1e-3, 10),
    "lr": tune.uniform(0.01, 0.3),
    "rounds": tune.randint(1, 9),
    "batch": tune.lograndint(4, 65),
}
MIXED = RANGES | {"optimizer": tune.choice(["sgd", "adam"]), "steps": tune.choice([1, 5, 20])}
FIRST = {"lam": 1.0, "lr": 0.05, "rounds": 3, "batch": 32}
CONDITIONS = {"momentum": {"optimizer": ("sgd",)}}
CONDITIONAL = {
    "optimizer": tune.choice(["sgd", "adam"]),
    "lr": tune.loguniform(1e-3, 0.3),
    "momentum": tune.uniform(0, 0.9),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Ray says that it converts a space, and Optuna that a trial was told."""
    for name in ("optuna", "ray.tune"):
        caplog.set_level(logging.ERROR, name)


class ByHand:
    """The conditional space as a function that Ray's searcher calls with Optuna's trial."""

    def __call__(self, trial: optuna.Trial) -> None:
        chosen: dict[str, Any] = {"optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam"])}
        chosen["lr"] = trial.suggest_float("lr", 1e-3, 0.3, log=True)
        if met(CONDITIONS["momentum"], chosen):
            trial.suggest_float("momentum", 0, 0.9)


def driven(searcher: Searcher, trials: int, several: bool = False) -> list[dict[str, Any]]:
    """What it suggests when three trials run at a time and end in every way that there is."""
    rng, configs, running = random.Random(7), [], []
    for i in range(trials):
        config = searcher.suggest(str(i))
        assert isinstance(config, dict)
        configs.append(config)
        running.append(i)
        if len(running) < 3:
            continue
        ends = running.pop(rng.randrange(3))
        value, how = rng.random(), ends % 5
        rounds = [{METRIC: value * t / 4, "comm_mb": 1.0 * t, "training_iteration": t} for t in (1, 2, 3)]
        for row in rounds:
            searcher.on_trial_result(str(ends), row)
        whole = {METRIC: value, "comm_mb": 4 * value, "training_iteration": 4}
        if how == 1:  # failed
            searcher.on_trial_complete(str(ends), None, True)
        elif how == 2:  # stopped: Ray's tells Optuna so only of a trial without a result
            theirs = isinstance(searcher, OptunaSearch)
            searcher.on_trial_complete(str(ends), None if theirs else rounds[-1])
        elif how == 3 and not several:  # diverged: ours tells the worst value
            searcher.on_trial_complete(str(ends), {METRIC: 0.0, "training_iteration": 3, "diverged": True})
        else:
            if isinstance(searcher, OptunaSearch) and not several:
                searcher.on_trial_result(str(ends), whole)  # ours reports a trial's last round by itself
            searcher.on_trial_complete(str(ends), whole | {"complete": True})
    return configs


@pytest.mark.filterwarnings("ignore:Define-by-run function")  # Ray warns where a busy machine makes it slow
@pytest.mark.parametrize(
    ("name", "domains", "trials"),
    [
        ("cmaes", RANGES, 40),
        *((name, MIXED, n) for name, n in (("tpe", 40), ("random", 20), ("nsga2", 70), ("gp", 14))),
        *((name, CONDITIONAL, n) for name, n in (("tpe", 40), ("random", 20), ("nsga2", 60), ("gp", 14))),
    ],
)
def test_suggests_the_same_sequence_as_rays_own(name: str, domains: dict, trials: int) -> None:
    conditional = domains is CONDITIONAL
    first = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5} if conditional else FIRST
    if domains is MIXED:
        first = first | {"optimizer": "adam", "steps": 5}
    points = [first, first | {"lr": 0.1}]
    space = Space(domains, [], CONDITIONS if conditional else {})
    ours = searchers.searcher(name, space, points, [], seed=5, study="s")
    theirs = OptunaSearch(
        ByHand() if conditional else OptunaSearch.convert_search_space(domains),
        METRIC,
        "max",
        points_to_evaluate=points,
        sampler=searchers.find(name).sampler(5),
        study_name="s",
    )
    configs = driven(ours, trials)
    assert configs == driven(theirs, trials)
    told = [dict(t.params) for t in theirs._ot_study.trials]
    assert [list(map(type, c.values())) for c in configs] == [list(map(type, c.values())) for c in told]
    assert configs[:2] == points and len({str(c) for c in configs}) > trials // 2


@pytest.mark.parametrize("name", ["tpe", "nsga2", "gp", "random"])
def test_suggests_the_same_sequence_for_two_objectives(name: str) -> None:
    trials = 60 if name == "nsga2" else 14 if name == "gp" else 30
    ours = searchers.searcher(name, Space(MIXED, []), [], [], seed=5, study="s", goal=Goal(parse("val_acc,comm_mb")))
    theirs = OptunaSearch(
        OptunaSearch.convert_search_space(MIXED),
        [METRIC, "comm_mb"],
        ["max", "min"],
        sampler=searchers.find(name).sampler(5),
        study_name="s",
    )
    assert driven(ours, trials, several=True) == driven(theirs, trials, several=True)


def test_domains_are_converted_as_ray_converts_them() -> None:
    theirs = OptunaSearch.convert_search_space(MIXED)
    assert distributions(Space(MIXED, [])) == theirs


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "nsga2", "random"])
def test_goes_on_after_a_restore_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    """Whatever Ray says again of trials that ended; also from a state of 155f0d56, which listed those beside all."""

    def made(log: Path | None = None) -> OptunaSearcher:
        made = searchers.searcher(name, Space(RANGES, []), [FIRST], [{"lam": 0.0}], seed=5, study="s", log=log)
        assert isinstance(made, OptunaSearcher)
        return made

    whole = made()
    driven(whole, 12)
    searcher = made(tmp_path / "before")
    driven(searcher, 12)
    searcher.save(str(tmp_path / "state.pkl"))
    restored = pickle.loads(pickle.dumps(made()))  # Tune unpickles a searcher, then restores its state
    restored.log = tmp_path / "after"
    if name == "random":
        state = pickle.loads((tmp_path / "state.pkl").read_bytes())
        state["_ended_trials"] = {n for n, trial in state["_trials"].items() if trial is None}
        state["_trials"] = {n: optuna.Trial(state["study"], int(n)) for n in state["_trials"]}
        (tmp_path / "state.pkl").write_bytes(pickle.dumps(state))
    restored.restore(str(tmp_path / "state.pkl"))
    ended = {t.user_attrs["trial"]: t for t in restored.study.trials if t.state.is_finished()}
    assert len(ended) == 10
    for trial in ended:
        restored.on_trial_result(trial, {METRIC: 0.9, "round": 5, "training_iteration": 5})
        restored.on_trial_complete(trial, {METRIC: 0.9, "training_iteration": 6, "complete": True})
        restored.on_trial_complete(trial, error=True)
    assert {t.user_attrs["trial"]: t for t in restored.study.trials if t.state.is_finished()} == ended
    with pytest.raises(KeyError):  # a trial of another search, or from after this state
        restored.on_trial_complete("never suggested", error=True)
    assert [restored.suggest(f"x{i}") for i in range(4)] == [whole.suggest(f"x{i}") for i in range(4)]
    assert len((tmp_path / "after").read_text().splitlines()) == 4, "suggestions go where the run lies now"
    assert len(restored.study.trials) == 16


def test_the_gaussian_process_fits_in_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside busy trials, threads wait for each other."""
    seen: list[int] = []

    def fit(*_: Any) -> dict[str, Any]:
        seen.append(torch.get_num_threads())
        return {}

    monkeypatch.setattr(optuna.samplers.GPSampler, "sample_relative", fit)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        driven(searchers.searcher("gp", Space(RANGES, []), [FIRST], [{}], 0, "gp"), 3)  # the first is given
        assert seen == [1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


FOUR = {"optimizer": tune.choice(["sgd", "adam"]), "batch": tune.choice([4, 8])}
TEN = FOUR | {"momentum": tune.choice([0.0, 0.25, 0.5, 0.75])}


@pytest.mark.parametrize("name", ["tpe", "random", "gp", "nsga2", "cmaes", "grid"])
@pytest.mark.parametrize(("domains", "conditions", "there"), [(FOUR, {}, 4), (TEN, CONDITIONS, 10)])
def test_no_configuration_of_finitely_many_is_suggested_twice(
    name: str, domains: dict, conditions: dict, there: int, tmp_path: Path
) -> None:
    if conditions and "conditions" in searchers.find(name).lacks:
        pytest.skip("it takes no conditions")
    first = {"batch": 8, "optimizer": "sgd"} | ({"momentum": 0.5} if conditions else {})
    space = Space(domains, [], conditions)
    searcher = searchers.searcher(name, space, [first], [], seed=1, study="s", once=True)
    assert isinstance(searcher, OptunaSearcher)
    journal = StudyJournal(searcher, tmp_path / "study.journal")
    got = []
    for i in range(there):
        got.append(searcher.suggest(str(i)))
        searcher.on_trial_complete(str(i), {METRIC: 0.9 - 0.1 * i, "training_iteration": 1, "complete": True})
        journal.on_trial_complete(0, [], None)
        if i == there // 2:  # as after a resume
            searcher.save(str(tmp_path / "state.pkl"))
            searcher.restore(str(tmp_path / "state.pkl"))
            journal = StudyJournal(searcher, tmp_path / "resumed.journal")
    assert got[0] == first and len({str(sorted(c.items())) for c in got}) == there
    assert space_facts.is_finite(space) and len(list(space_facts.configurations(space))) == there
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "resumed.journal")))
    (kept,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=kept, storage=storage).trials
    assert [t.params for t in trials] == got and all(t.state == TrialState.COMPLETE for t in trials)
    searcher.suggest("one more")  # of none that is left: it may be any


@pytest.mark.parametrize(
    ("domains", "conditions", "asked", "there"),
    [
        (FOUR, {}, 10, 4),
        (FOUR, {}, 3, 3),
        (TEN, CONDITIONS, 32, 10),
        (CONDITIONAL, CONDITIONS, 32, 32),
        ({"rounds": tune.randint(1, 1_000_000), "batch": tune.randint(1, 1_000_000)}, {}, 32, 32),
    ],
)
def test_there_are_no_more_trials_than_configurations_and_that_is_said(
    domains: dict, conditions: dict, asked: int, there: int, capsys: pytest.CaptureFixture[str]
) -> None:
    space = Space(domains, [], conditions)
    assert space_facts.trials(asked, space, [{}], 0, moves=False) == there
    said = capsys.readouterr().err
    assert (f"only {there} configurations, and none is tried twice: {there} trials instead of {asked}" in said) == (
        there < asked
    )
    assert space_facts.are_all(space, there) == (there < asked), "of which no caveat of random draws is said"
    assert space_facts.trials(asked, space, [{}], 1, moves=False) == min(asked, there + 1), (
        "the default, outside the space"
    )
    assert space_facts.trials(asked, space, [{}], 0, moves=True) == asked, "a population moves on from where it begins"


def test_a_grid_has_a_trial_for_each_point(capsys: pytest.CaptureFixture[str]) -> None:
    grid = space_facts.as_grid(Space(FOUR, []))
    assert len(grid.points) == 4 and space_facts.trials(10, grid, grid.points, 0, moves=False) == 4
    assert "4 trials instead of 10" in capsys.readouterr().err
