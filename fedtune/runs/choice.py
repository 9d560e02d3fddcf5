"""Which of its finished trials a search names, after the best were trained on more seeds.

Real searches and simulated ones choose by this rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

CHOOSE_SEEDS = 1  # seeds that a search chooses by, if no option says it: those of a trial itself
TOP = 3  # trials that are trained on more seeds at a time
OWN = "own"  # the entry with a trial's objective on its own seeds

Trial = TypeVar("Trial")


def standing(ranked: Sequence[Trial], worth: Callable[[Sequence[Trial]], Sequence[float]]) -> Trial | None:
    """Of the best three finished trials the one with the best mean over all seeds; of equals the one ranked first.

    If none of the three can be chosen it is one of the next three, and so on; None if no trial can be.

    ranked   finished trials, the best first by their own seeds
    worth    trains some of them on more seeds and returns the mean of each, the higher the better; NaN for a trial that
             diverged on one of them
    """
    for start in range(0, len(ranked), TOP):
        some = ranked[start : start + TOP]
        means = [(mean, -i) for i, mean in enumerate(worth(some)) if not math.isnan(mean)]
        if means:
            return some[-max(means)[1]]
    return None


def cost(file: Path) -> dict[str, float]:
    """What one of the runs that decided took, from its file: rounds, comm_mb (not a number if unknown) and seconds."""
    rows = json.loads(file.read_bytes())["rounds"]
    sent = rows[-1].get("comm_mb", math.nan) if rows else 0.0
    return {
        "rounds": rows[-1]["round"] if rows else 0,
        "comm_mb": sent,
        "seconds": sum(r["seconds"] + r["eval_seconds"] for r in rows),
    }


def usual_runs(choose_seeds: int) -> int:
    """The runs that a choice takes if its first three trials decide it."""
    return TOP * (choose_seeds - 1)
