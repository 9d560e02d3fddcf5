"""What a run's record holds of defaults, so that it stays the run that it was when declarations change.

A record holds every hyperparameter where it is neither pinned nor searched.  Those of fedtune 0.2.0 hold none: they go
by the declarations of then, which `Algorithm.former` keeps where they are others now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedtune.core.hyper import knobs
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario


def preset_of(preset: str, defaults: Mapping[str, Any] | None) -> str:
    """A record's preset: where it holds no defaults, `as_text` was another name for those."""
    return "" if preset == "as_text" and not defaults else preset


def defaults_of(cls: type[Algorithm], preset: str, defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """The defaults that a record holds, or those of then that are others now and that its preset leaves alone."""
    return {n: v for n, v in cls.former.items() if n not in cls.presets.get(preset, {})} | dict(defaults or {})


def moved(
    cls: type[Algorithm], scenario: Scenario, preset: Mapping[str, Any], now: Mapping[str, Any], but: Collection[str]
) -> dict[str, Any]:
    """Those of the hyperparameters `now` that were not so in fedtune 0.2.0, under a preset of then; without `but`."""
    declared = {n: knob.default for n, knob in knobs(cls).items()}
    then = {n: getattr(scenario, n) for n in knobs(Scenario)} | declared | dict(cls.former) | dict(preset)
    return {n: v for n, v in now.items() if n not in but and (n not in then or v != then[n])}
