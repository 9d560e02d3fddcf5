"""What is declared of a run's hyperparameters, as far as this fedtune knows its algorithm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtune.core.hyper import Knob, knobs
from fedtune.experiment import recorded, registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs import user_copies


def knobs_of(run: Path, record: dict[str, Any]) -> dict[str, Knob]:
    """The hyperparameters of a run's algorithm, as this fedtune or the run's own files declare them."""
    try:
        return Experiment(record["algorithm"], Scenario(), own=user_copies.known(run, record)).knobs()
    except ValueError:  # an algorithm that this fedtune does not have
        return {}


def defaults_of(run: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Every hyperparameter as it is where it is not searched.

    The scenario's fields are recorded as the preset left them, so a preset moves only the algorithm's own here.
    """
    pinned, preset = record.get("pinned") or {}, record.get("preset") or ""
    own = user_copies.known(run, record)
    try:
        scenario = Scenario(**record["scenario"])
        given, held = tuple(knobs(Scenario)), record.get("defaults")
        preset = recorded.preset_of(preset, held)
        experiment = Experiment(record["algorithm"], scenario, pinned=pinned, preset=preset, given=given, own=own)
        experiment.knobs()  # registers its own files
        defaults = recorded.defaults_of(registry.find(record["algorithm"]), preset, held)
        return replace(experiment, defaults=defaults).configuration({})
    except (TypeError, ValueError):  # of an older or newer fedtune
        return {}
