"""Two objectives: the Pareto front of rounds and its hypervolume."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedtune.core.objectives import Objective, parse_recorded


def with_totals(rounds: pd.DataFrame) -> pd.DataFrame:
    """Rounds with `seconds` accumulated since the trial's start, as the objective of this name is defined."""
    used = (rounds["seconds"] + rounds["eval_seconds"]).groupby(rounds["trial"]).cumsum()
    return rounds.assign(seconds=used)


def signed(objectives: Sequence[str | Objective]) -> tuple[list[str], dict[str, int]]:
    """The objectives' names, and by name 1 if more is better, else -1."""
    parsed = [parse_recorded(str(o)) for o in objectives]
    return [o.name for o in parsed], {o.name: o.sign for o in parsed}


def front(points: pd.DataFrame, objectives: Sequence[str | Objective]) -> pd.DataFrame:
    """The Pareto front: points that no other point dominates.  Sorted so that the best first objective is last.

    points: a row per round of every trial (`with_totals`), not one per trial: a trial that was stopped early has little
    communication at its end and would be on a front of last rounds.  Of equal points the first stays.  Sorts by one
    objective and scans the other: O(n log n).
    """
    (first, second), up = signed(objectives)
    fine = points.dropna(subset=[first, second]).reset_index(drop=True)  # labels may be duplicated
    order = pd.DataFrame({"a": -up[second] * fine[second], "b": -up[first] * fine[first]}, index=fine.index)
    ordered = fine.loc[order.sort_values(["a", "b"], kind="stable").index]
    value = up[first] * ordered[first]
    return ordered[value > value.cummax().shift(fill_value=float("-inf"))].reset_index(drop=True)


def hypervolume(points: pd.DataFrame, objectives: Sequence[str | Objective], reference: Sequence[float]) -> float:
    """The area between the points' Pareto front and a reference point: exact, in the product of the objectives' units.

    reference: the worst value of each objective that counts, in the objectives' order, for example an accuracy of 0 and
    5 MB.  State it with the figure, which means nothing without it.  Points that are not better than it in both
    objectives add nothing.  A sum of rectangles, one per point of the front.
    """
    names, up = signed(objectives)
    gains = [up[name] * (points[name].astype(float) - worst) for name, worst in zip(names, reference, strict=True)]
    inside = points[(gains[0] > 0) & (gains[1] > 0)]
    staircase = front(inside, objectives)  # the first objective rises, the second falls
    first, second = (
        up[name] * (staircase[name].astype(float) - worst) for name, worst in zip(names, reference, strict=True)
    )
    return float(((first - first.shift(fill_value=0.0)) * second).sum())
