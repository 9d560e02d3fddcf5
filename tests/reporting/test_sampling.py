"""A report on thousands of trials: bounded in size, with the best of them, and it says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution

from fedtune.reporting import sampling
from fedtune.reporting.findings import Findings


def made(count: int) -> Findings:
    """A search of so many trials of three rounds each."""
    names, ends = [f"{i:08x}" for i in range(count)], np.random.default_rng(0).uniform(0.5, 0.9, count)
    trials = pd.DataFrame({"trial": names, "status": "finished", "rounds": 3, "last_val_acc": ends, "config/lr": 0.1})
    rounds = pd.DataFrame({"trial": np.repeat(names, 3), "round": [1, 2, 3] * count, "val_acc": np.repeat(ends, 3)})
    state = {"state": "finished", "scenario": "digits-w4", "yaml": "", "default": {}, "check": None, "config": {}}
    return Findings(run=Path("run"), record={"algorithm": "fedavg"}, trials=trials, rounds=rounds, best=None, **state)


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the trials that a report draws, and few in its table."""
    monkeypatch.setattr(sampling, "DRAWN", 40)
    monkeypatch.setattr(sampling, "LISTED", 200)


def test_the_best_are_drawn_and_listed_and_others_at_random() -> None:
    f = made(300)
    some, table = sampling.drawn(f), sampling.listed(f)
    best = f.trials.sort_values("last_val_acc", ascending=False)["trial"]
    assert len(some.trials) == sampling.DRAWN and set(best[:20]) <= set(some.trials["trial"])
    assert not set(some.trials["trial"]) <= set(best[:60]), "none at random"
    assert set(some.rounds["trial"]) == set(some.trials["trial"]) and some.trials.index.is_monotonic_increasing
    assert list(table["trial"]) == list(best[: sampling.LISTED])
    pd.testing.assert_frame_equal(sampling.drawn(f).trials, some.trials)  # the same each time
    note = "this shows 40 of 300 trials, the best 20 and others drawn at random; the table has the best 200; "
    assert sampling.note(f) == f"{note}frames.load returns all of them"
    study, over = optuna.create_study(direction="maximize"), {"lr": FloatDistribution(0, 1)}
    for name, value in zip(f.trials["trial"], f.trials["last_val_acc"], strict=True):
        how = {"params": {"lr": 0.1}, "distributions": over, "user_attrs": {"trial": name}}
        study.add_trial(optuna.trial.create_trial(value=value, **how))
    drawn = sampling.of_study(study, f)
    assert {t.user_attrs["trial"] for t in drawn.trials} == set(some.trials["trial"])
    assert drawn.directions == study.directions and drawn.best_value == study.best_value


def test_of_few_trials_nothing_is_left_out_and_nothing_said() -> None:
    f = made(20)
    assert sampling.drawn(f) is f and len(sampling.listed(f)) == 20 and sampling.note(f) == ""
