"""What tuning gained, and how sure that is, in a sentence: the same in a terminal and in a report."""

from __future__ import annotations

import math

import pandas as pd

from fedtune.core.objectives import Objective
from fedtune.core.statistics import interval, mean_difference
from fedtune.core.terminal import several
from fedtune.runs import trial_states


def sentence(runs: pd.DataFrame, objective: Objective, repeatable: bool = True) -> str:
    """Best against default on fresh seeds, paired by seed; without a full stop.

    runs: configuration (best, default), seed, the objective's test metric, reason.
    repeatable: whether runs have seeds; otherwise they are repetitions.
    """
    if not {"best", "default"} <= set(runs["configuration"]):
        return "The tuned configuration is the default one"
    column = objective.reported(runs)
    by_seed = runs.pivot(index="seed", columns="configuration", values=column).astype(float)
    gain = mean_difference(by_seed["best"], by_seed["default"])
    if math.isnan(gain.mean):
        how = f"{trial_states.lost(runs['reason'])} {'on fresh seeds' if repeatable else 'when repeated'}"
        return f"Runs {how}, so whether tuning gained anything over the default is unknown"
    what = "test accuracy" if column == "test_acc" else column
    count = several(len(by_seed), "fresh seed" if repeatable else "repetition")
    start = f"{'On' if repeatable else 'In'} {count} the tuned configuration"
    if math.isnan(gain.half):
        said = interval(gain.mean, gain.half, "+z.4f")
        return f"{start} differs from the default by {said} in {what}; how much of that is chance is unknown"
    by = f"{interval(gain.mean, gain.half, '+z.4f')} in {what}, 95 % interval"
    if abs(gain.mean) <= gain.half:
        return f"{start} does not differ significantly from the default ({by})"
    better = gain.mean * objective.sign_of(column) > 0
    return f"{start} {'beats' if better else 'is worse than'} the default ({by})"
