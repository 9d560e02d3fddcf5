"""Ranges are widened by rule: where a best configuration lies at an end, for all that share the range."""

from __future__ import annotations

import pytest
from ray import tune

from fedtune.core.errors import UserError
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import space, widening
from fedtune.tuning.domains import domain_text

NAMES = ("fedprox", "fedavg", "fedbabu", "fedgen", "fedpa", "fedpft")
WORKLOADS = {name: Experiment(algorithm=name, scenario=Scenario()) for name in NAMES}
SPACES = {name: space.load("default", w) for name, w in WORKLOADS.items()}
HYPERPARAMETERS = WORKLOADS["fedprox"].hyperparameters()


@pytest.mark.parametrize(
    ("name", "domain", "sides", "text"),
    [
        ("lr", tune.loguniform(1e-2, 0.1), {"lower"}, "0.001 … 0.1 (log)"),
        ("lr", tune.loguniform(1e-2, 0.3), {"lower", "upper"}, "0.001 … 1 (log)"),  # 3 is not declared
        ("lr", tune.uniform(0.2, 0.3), {"upper"}, "0.2 … 0.4"),
        ("lr", tune.loguniform(1e-2, 1.0), {"upper"}, None),  # goes as far as is declared
        ("momentum", tune.uniform(0.0, 0.95), {"upper"}, "0 … 0.99"),
        ("local_epochs", tune.randint(2, 6), {"upper"}, "2 … 8"),
        ("batch", tune.lograndint(4, 33), {"lower", "upper"}, "1 … 128 (log)"),
        ("optimizer", tune.choice(["sgd", "adam"]), {"upper"}, None),
    ],
)
def test_a_range_grows_once_as_far_as_is_declared(name: str, domain, sides: set[str], text: str | None) -> None:
    wider = widening.wider(domain, HYPERPARAMETERS[name], frozenset(sides))
    assert (wider and domain_text(wider)) == text


def test_an_end_is_widened_for_all_that_share_the_range_and_for_no_other() -> None:
    inside = {"lr": 0.02, "momentum": 0.5, "local_epochs": 3}
    best = {
        "fedprox": [inside, {**inside, "mu": 1e-4, "lr": 0.299}],  # of two searches
        "fedbabu": [{**inside, "tune_epochs": 20, "tune_lr": 0.01}],
    }
    found = widening.rule(SPACES, WORKLOADS, best)
    said = {name: {n: domain_text(d) for n, d in of.items()} for name, of in found.ranges.items()}
    lr = {"lr": "0.001 … 1 (log)"}
    assert said == {
        "fedprox": lr,
        "fedavg": lr,
        "fedbabu": lr | {"tune_epochs": "1 … 39"},
        "fedgen": lr,
        "fedpa": lr,
        "fedpft": {},
    }
    assert found.reasons == [
        "mu stays at 0.0001 … 1 (log), all that is declared, though fedprox chose 0.0001",
        "lr: 0.001 … 0.3 (log) becomes 0.001 … 1 (log) for all 5 that share it, because fedprox chose 0.299",
        "tune_epochs: 1 … 20 becomes 1 … 39 for fedbabu, because fedbabu chose 20",
    ]


def test_a_range_of_a_family_is_shared_by_the_family() -> None:
    found = widening.rule(SPACES, WORKLOADS, {"fedpa": [{"gen_steps": 5}]})
    assert {n for n, of in found.ranges.items() if of} == {"fedgen", "fedpa"}
    assert domain_text(found.ranges["fedgen"]["gen_steps"]) == "2 … 200 (log)"


def test_where_nothing_is_touched_nothing_grows() -> None:
    found = widening.rule(SPACES, WORKLOADS, {"fedavg": [{"lr": 0.02, "momentum": 0.0, "local_epochs": 1}]})
    assert not any(found.ranges.values()) and not found.reasons  # 0 and 1 are natural limits


def test_other_ranges_of_a_space_are_given_by_name() -> None:
    e, whole = WORKLOADS["fedprox"], SPACES["fedprox"]
    found = widening.with_ranges(whole, "lr=0.0001..1,local_epochs=2..9", e)
    assert found.text() == whole.text() | {"lr": "0.0001 … 1 (log)", "local_epochs": "2 … 9"}
    assert widening.with_ranges(whole, None, e) is whole
    for wrong, message in {
        "lr": "--ranges needs NAME=LOW..HIGH, but got 'lr'; for instance lr=0.001..1",
        "batch=4..8": "--ranges takes ranges of the space .mu, lr, momentum, local_epochs., but got batch; --also adds",
        "lr=0.1..0.01": "lr needs a range low < high, but got 0.1 … 0.01",
        "lr=0.1..7": "lr must be a number in 1e-05 … 1",
    }.items():
        with pytest.raises(UserError, match=message):
            widening.with_ranges(whole, wrong, e)
