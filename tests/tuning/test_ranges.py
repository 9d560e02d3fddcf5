"""Ranges are widened by rule: where a best configuration lies at an end, for all that share the range."""

from __future__ import annotations

import pytest

from fedtune.core.hyper import Range
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.tuning import ranges, space

NAMES = ("fedprox", "fedavg", "fedbabu", "fedgen", "fedpa", "fedpft")
WORKLOADS = {name: Experiment(algorithm=name, scenario=Scenario()) for name in NAMES}
SPACES = {name: space.load("default", w) for name, w in WORKLOADS.items()}
HYPERPARAMETERS = WORKLOADS["fedprox"].hyperparameters()


@pytest.mark.parametrize(
    ("name", "old", "sides", "new"),
    [
        ("lr", "0.01..0.1 log", {"lower"}, "0.001..0.1 log"),
        ("lr", "0.01..0.3 log", {"lower", "upper"}, "0.001..1 log"),  # 3 is not declared
        ("lr", "0.25..0.5", {"upper"}, "0.25..0.75"),
        ("lr", "0.01..1 log", {"upper"}, None),  # goes as far as is declared
        ("momentum", "0..0.95", {"upper"}, "0..0.99"),
        ("local_epochs", "2..5", {"upper"}, "2..8"),
        ("batch", "4..32 log", {"lower", "upper"}, "1..128 log"),
    ],
)
def test_a_range_grows_once_as_far_as_is_declared(name: str, old: str, sides: set[str], new: str | None) -> None:
    wider = ranges.wider(Range.parse(old), HYPERPARAMETERS[name], frozenset(sides))
    assert (wider and wider.text()) == new


def test_an_end_is_widened_for_all_that_share_the_range_and_for_no_other() -> None:
    inside = {"lr": 0.02, "momentum": 0.5, "local_epochs": 3}
    best = {
        "fedprox": [inside, {**inside, "mu": 1e-4, "lr": 0.299}],  # of two searches
        "fedbabu": [{**inside, "tune_epochs": 20, "tune_lr": 0.01}],
    }
    found = ranges.rule(SPACES, WORKLOADS, best)
    said = {name: {n: r.text() for n, r in of.items()} for name, of in found.ranges.items()}
    lr = {"lr": "0.001..1 log"}
    of_all = dict.fromkeys(("fedprox", "fedavg", "fedgen", "fedpa"), lr)
    assert said == of_all | {"fedbabu": lr | {"tune_epochs": "1..39"}, "fedpft": {}}
    assert found.reasons == [
        "mu stays at 0.0001..1 log, all that is declared, though fedprox chose 0.0001",
        "lr: 0.001..0.3 log becomes 0.001..1 log for all 5 that share it, because fedprox chose 0.299",
        "tune_epochs: 1..20 becomes 1..39 for fedbabu, because fedbabu chose 20",
    ]


def test_a_range_of_a_family_is_shared_by_the_family() -> None:
    found = ranges.rule(SPACES, WORKLOADS, {"fedpa": [{"gen_steps": 5}]})
    assert {n for n, of in found.ranges.items() if of} == {"fedgen", "fedpa"}
    assert found.ranges["fedgen"]["gen_steps"].text() == "2..200 log"


def test_where_nothing_is_touched_nothing_grows() -> None:
    found = ranges.rule(SPACES, WORKLOADS, {"fedavg": [{"lr": 0.02, "momentum": 0.0, "local_epochs": 1}]})
    assert not any(found.ranges.values()) and not found.reasons  # 0 and 1 are natural limits


def test_other_hyperparameters_and_ranges_are_searched_by_name() -> None:
    e, whole = WORKLOADS["fedprox"], SPACES["fedprox"]
    found = space.varied(whole, ["lr=0.0001..1 log", "local_epochs=2..9", "batch", "momentum=0.5..0.9"], e)
    others = {"lr": "0.0001..1 log", "local_epochs": "2..9", "batch": "1..256 log", "momentum": "0.5..0.9"}
    assert found.text() == whole.text() | others
    assert list(found.domains) == [*whole.domains, "batch"] and space.varied(whole, (), e) == whole


def test_a_range_without_log_is_searched_evenly_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = space.varied(SPACES["fedprox"], ["lr=0.01..0.1"], WORKLOADS["fedprox"])
    assert found.text()["lr"] == "0.01..0.1" and "'lr=0.01..0.1 log' does so on a log scale" in capsys.readouterr().err
