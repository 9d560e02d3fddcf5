"""Descriptions of a run: how the search was done, and which hyperparameters mattered."""

from __future__ import annotations

from typing import Any

from fedtune.analysis.plots import RESAMPLES, Importance
from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.core.terminal import several, short
from fedtune.runs.choice import TOP
from fedtune.runs.reading import rounds_of

SURE = 0.95  # share of resamples in which it must rank first; below, what mattered most cannot be told


def search_settings(record: dict[str, Any]) -> str:
    """Trial length, searcher, scheduler and rungs, in words."""
    budget = record.get("budget") or {}
    unit = {"mb": "MB", "seconds": "s"}.get(str(budget.get("unit")))
    length = f"up to {several(rounds_of(record), 'round')}"
    length += f" or {short(budget['limit'])} {unit}" if unit else ""
    rungs = ", ".join(short(x) for x in record.get("rungs") or [])
    scheduler = str(record.get("scheduler", "")) + (f" with rungs at {rungs}" if rungs else "")
    parts = [length, str(record.get("searcher", "")), scheduler]
    if (goal := Goal.from_record(record)) != BY_ACCURACY:
        parts.append(f"for {goal.in_words}")
    if (chosen_by := record.get("choose_seeds") or 1) > 1:
        parts.append(f"the best {TOP} on {several(chosen_by - 1, 'more seed')}")
    return ", ".join(p for p in parts if p)


def surely_first(importance: Importance) -> bool:
    """Whether it can be told which hyperparameter mattered most."""
    return importance.first >= SURE * RESAMPLES


def mattered(importance: Importance | None) -> str:
    """Which hyperparameter mattered most among the trials, and how sure that is; "" where it cannot be told."""
    if not importance or not surely_first(importance):
        return ""
    name, share = next(iter(importance.shares.items()))
    return (
        f"and {name} mattered most: {100 * share:.0f} % of the variance between {several(importance.trials, 'trial')} "
        f"(fANOVA; it ranks first in {importance.first} of {RESAMPLES} resamples of the trials)"
    )
