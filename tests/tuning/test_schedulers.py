"""Schedulers and searchers go by name, and what does not go together is refused."""

from pathlib import Path

import pytest
from ray import tune
from support.searches import started

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.objectives import BY_ACCURACY
from fedtune.tuning import messages, plan, schedulers, searchers
from fedtune.tuning.driver import ResumableLimit
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.space import Space

RANGES = Space({"lam": tune.loguniform(0.1, 10)}, [])
PACES = Space({"body_lr_scale": tune.choice([0.0, 0.1])}, [])


@pytest.mark.parametrize("name", schedulers.SCHEDULERS)
def test_every_scheduler_is_made(name):
    scheduler = schedulers.scheduler(name, Budget("rounds", 60), 20, RANGES)
    assert scheduler.set_search_properties(None, None)


@pytest.mark.parametrize("name", ["tpe", "gp", "random"])
def test_the_first_trial_has_what_the_space_cannot_hold(name):
    searcher = searchers.searcher(name, RANGES, [{"lam": 0.1}], [{"lam": 0.0}], seed=3, study="s")
    got = []
    for i in range(4):
        got.append(searcher.suggest(str(i))["lam"])
        searcher.on_trial_complete(str(i), {"val_acc": 0.1 * i, "training_iteration": 1})
    assert got[0] == 0 and all(0.1 <= v <= 10 for v in got[1:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"scheduler": name}, "as its grace period is all of a trial's 20 rounds") for name in ("asha", "promote")),
        *(({"scheduler": name}, "as its grace period is all of a trial's 20 rounds") for name in ("median", "pbt")),
        ({"grace": 20}, "as its grace period is all of a trial's 20 rounds"),
        ({"budget_unit": "mb", "budget": 5, "grace": 5}, "as its grace period is all of a trial's 5 mb"),
        ({"fields": {"rounds": 1}, "algo": "fedavg"}, "as its grace period is all of a trial's 1 rounds"),
        ({"scheduler": "none"}, ""),
        ({"fields": {"rounds": 60}}, ""),
        ({"grace": 10}, ""),
        ({"algo": "fedavg"}, ""),
    ],
)
def test_what_can_stop_nothing_says_why(changes, said, tmp_path, capsys):
    asked = {"algo": "gfpl", "scenario": "gfpl-fmnist-few", "fields": {"rounds": 20}, "storage_path": str(tmp_path)}
    made = plan.make(SearchOptions(**(asked | changes)))
    assert said in made.unjudged and bool(said) == bool(made.unjudged)
    assert made.to_record().get("unjudged", "") == made.unjudged
    capsys.readouterr()
    messages.announce(started(made))
    assert (f"note: {made.unjudged}" in capsys.readouterr().err) == bool(said)


def test_rungs_start_at_the_grace_period():
    assert schedulers.rungs("asha", 60, 20) == [20]
    assert schedulers.rungs("asha", 200, 20) == schedulers.rungs("promote", 200, 20) == [20, 60, 180]
    assert schedulers.rungs("none", 60, 20) == schedulers.rungs("median", 60, 20) == []


@pytest.mark.parametrize(
    ("changes", "budget", "grace"),
    [
        ({}, {"unit": "rounds", "limit": 6}, 2),
        ({"grace": 1}, {"unit": "rounds", "limit": 6}, 1),
        ({"fields": {"rounds": 40}}, {"unit": "rounds", "limit": 6}, 4),  # extended by more rounds
        ({}, {"unit": "mb", "limit": 6}, 3),  # repeated: for so many rounds as each trial had
        ({}, {}, 3),
    ],
)
def test_a_search_that_goes_on_keeps_its_rungs(changes: dict, budget: dict, grace: int, tmp_path: Path) -> None:
    """Another version may have put them elsewhere, and Ray's saved scheduler has its own."""
    asked = {"algo": "fedavg", "scenario": "digits-w4", "fields": {"rounds": 6}, "storage_path": str(tmp_path)}
    record = {"options": SearchOptions(**(asked | changes)).to_record(), "budget": budget, "grace": 2}
    assert plan.make(SearchOptions.from_record(record)).grace == grace


def test_trials_that_copy_weights_have_one_pace_or_all_send_a_body() -> None:
    """Other combinations that are refused are rows of tests/commands/test_bad_input.py."""
    with pytest.raises(UserError, match="with body_lr_scale 0 no body is sent; leave 0 out"):
        searchers.require_combination("random", "pbt", PACES, BY_ACCURACY, ())


def test_a_resumed_search_has_the_limit_that_was_asked_for_now():
    searcher = searchers.searcher("random", RANGES, [], {}, seed=3, study="s")
    before, now = ResumableLimit(searcher, 2), ResumableLimit(searcher, 5)
    before.suggest("a")
    now.set_state(before.get_state())
    assert now.max_concurrent == 5 and now.live_trials == {"a"}
