"""Which scenarios an algorithm takes, and what it says that it scores."""

from typing import Any

import pytest
from support.distillation import MIXED
from support.helpers import BATCHNORM, DIGITS

from fedtune.core.errors import UserError
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario

POOLED, GLOBAL = {"evaluation": "pooled"}, {"evaluation": "global"}  # rules for one global model
OTHERS = {"model": "htmini3"}  # three architectures
REFUSED = [  # algorithm, the scenario's fields, values, why
    ("fedala", POOLED, {}, "under fedala weights stays with each client"),
    ("fedamp", POOLED, {}, "stays with each client"),
    ("fedavgft", POOLED, {}, "under fedavgft body, head stays with each client"),
    ("fedbn", {"model": "fedgen-cnn"} | GLOBAL, {}, r"under fedbn body\.1\.bias"),
    ("fedfomo", POOLED, {}, "stays with each client"),
    ("fedkd", GLOBAL, {}, "under fedkd body, head stays with each client"),
    ("fesem", POOLED, {}, "under fesem cluster stays with each client.*--evaluation personal"),
    ("fesem", GLOBAL, {}, "under fesem cluster stays with each client.*--evaluation personal"),
    ("fml", POOLED, {}, "under fml body, head stays with each client"),
    ("lgfedavg", GLOBAL, {}, "under lgfedavg body stays with each client"),
    ("fedpft", OTHERS, {}, "every client needs the same body"),
    ("fesem", OTHERS, {}, "fesem averages body and head.*lgfedavg"),
    ("lgfedavg", OTHERS, {"averages": "model"}, "every client must have the same"),
    ("fml", {}, {"meme": "celeba-cnn"}, "'celeba-cnn' does not fit images of 1×8×8"),
    ("fml", {}, {"meme": "mpl"}, "meme must be one of .*got 'mpl'"),
]
TAKEN = [
    ("fedavgft", POOLED, {"tune_epochs": 0}),
    ("fedbn", GLOBAL, {}),  # no BatchNorm
    ("lgfedavg", OTHERS, {}),
    ("lgfedavg", GLOBAL, {"averages": "model"}),
]
SCORED = [
    ("fedavgft", DIGITS, "the averaged model, trained on the client's own rows before it is scored, on each"),
    ("fedbn", BATCHNORM, "the averaged model with each client's own BatchNorm layers, on each"),
    ("fedkd", MIXED, "each client's own model"),
    ("fesem", DIGITS, "the model of each client's cluster, on each client's own rows"),
    ("fml", DIGITS, "each client's own model"),
]


def experiment(name: str, fields: dict[str, Any], pinned: dict[str, Any]) -> Experiment:
    return Experiment(algorithm=name, scenario=DIGITS.override(**fields), pinned=pinned)


@pytest.mark.parametrize(("name", "fields", "pinned", "why"), REFUSED)
def test_a_scenario_that_does_not_fit_is_refused(name: str, fields: dict, pinned: dict, why: str) -> None:
    with pytest.raises(UserError, match=why):
        experiment(name, fields, pinned).check()


@pytest.mark.parametrize(("name", "fields", "pinned"), TAKEN)
def test_one_that_fits_is_taken(name: str, fields: dict, pinned: dict) -> None:
    experiment(name, fields, pinned).check()


@pytest.mark.parametrize(("name", "scenario", "words"), SCORED)
def test_what_is_scored_is_said(name: str, scenario: Scenario, words: str) -> None:
    assert Experiment(algorithm=name, scenario=scenario).describe_scoring().startswith(words)
