"""Which of a search's finished trials is named, where the best ones are trained on more seeds before.

Real searches and simulated ones choose by this rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fedtune.core import bounded

CHOOSE_SEEDS = 1  # by so many a search chooses if nothing is said: a trial's own
TOP = 3  # trials that are trained on more seeds at a time
OWN = "own"  # the entry with a trial's objective on its own seeds

Trial = TypeVar("Trial")


def standing(ranked: Sequence[Trial], worth: Callable[[Sequence[Trial]], Sequence[float]]) -> Trial | None:
    """The best three finished trials decide it by their means over all seeds; ties go to the one ranked first.

    Where none of the three can be chosen the next three decide, and so on; None if no trial can be.

    ranked   finished trials, the best first by their own seeds
    worth    trains some of them on more seeds, and tells the mean of each over all, the higher the better; not a
             number for a trial that cannot be chosen, because it diverged on one of them
    """
    for start in range(0, len(ranked), TOP):
        some = ranked[start : start + TOP]
        known = [(mean, -i) for i, mean in enumerate(worth(some)) if not math.isnan(mean)]
        if known:
            return some[-max(known)[1]]
    return None


def cost(file: Path) -> dict[str, float]:
    """What one of the runs that decided took, from its file: rounds, comm_mb (not a number if unknown) and seconds."""
    rows = json.loads(bounded.read(file))["rounds"]
    sent = rows[-1].get("comm_mb", math.nan) if rows else 0.0
    return {
        "rounds": rows[-1]["round"] if rows else 0,
        "comm_mb": sent,
        "seconds": sum(r["seconds"] + r["eval_seconds"] for r in rows),
    }


def usual_runs(choose_seeds: int) -> int:
    """The runs that a choice takes if its first three trials decide it."""
    return TOP * (choose_seeds - 1)
