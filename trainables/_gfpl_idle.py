"""Which of GFPL's hyperparameters have no effect under which values of others, and in which scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue
from trainables._heads import one_component


def idle(values: Mapping[str, Any], scenario: Scenario) -> dict[str, str]:
    """Hyperparameters of GFPL that can have no effect under these values of others, or in this scenario."""
    found = one_component(scenario)
    if not values["dcs"]:
        found |= dict.fromkeys(("lam", "projection", "retrain", "predictor"), "dcs is off")
    if not values["pfg"] or values["retrain_on"] == "none":
        why = "pfg is off" if not values["pfg"] else "retrain_on is none"
        names = ("retrain_epochs", "retrain_lr", "retrain", "pseudo", "clip", "order", "catch_up", "apart")
        found |= dict.fromkeys(names, why)
    if not values["pfg"]:
        names = ("components", "threshold", "every", "start", "first", "variance_floor", "linkage", "weighing")
        found |= dict.fromkeys((*names, "retrain_on"), "pfg is off")
    if values["order"] == "interleaved":
        found |= dict.fromkeys(("pseudo", "retrain_epochs", "catch_up"), "order is interleaved: a step after each")
    if values["first"]:
        found["start"] = "first says when the first event is"
    if scenario.participation == 1:
        found["catch_up"] = "all clients take part in every round"
    if len(catalogue.members(scenario.model)) == 1:
        found["apart"] = "all clients run one architecture"
    return found
