"""Two objectives: which rounds of which trials are beaten by none."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedtune.core.objectives import Objective, written


def with_totals(rounds: pd.DataFrame) -> pd.DataFrame:
    """Rounds whose `seconds` are those since the trial's start, as the objective of that name means it."""
    used = (rounds["seconds"] + rounds["eval_seconds"]).groupby(rounds["trial"]).cumsum()
    return rounds.assign(seconds=used)


def signed(objectives: Sequence[str | Objective]) -> tuple[list[str], dict[str, int]]:
    """The objectives' names, and 1 by name where more is better, else -1."""
    parsed = [written(str(o)) for o in objectives]
    return [o.name for o in parsed], {o.name: o.sign for o in parsed}


def front(points: pd.DataFrame, objectives: Sequence[str | Objective]) -> pd.DataFrame:
    """The points that no other beats: none is as good in both objectives and better in one.  Best first objective last.

    points: a row per round of every trial (`with_totals`), and not one per trial, since a trial that was stopped for
    being bad has little communication at its end and would stand on the front of last rounds.  Of equal points the
    first stays.  Sorting by one objective and one pass over the other: O(n log n).
    """
    (first, second), up = signed(objectives)
    fine = points.dropna(subset=[first, second]).reset_index(drop=True)  # labels may come twice
    order = pd.DataFrame({"a": -up[second] * fine[second], "b": -up[first] * fine[first]}, index=fine.index)
    ordered = fine.loc[order.sort_values(["a", "b"], kind="stable").index]
    value = up[first] * ordered[first]
    return ordered[value > value.cummax().shift(fill_value=float("-inf"))].reset_index(drop=True)


def hypervolume(points: pd.DataFrame, objectives: Sequence[str | Objective], reference: Sequence[float]) -> float:
    """The area between the front of the points and a reference point: exact, in the product of the objectives' units.

    reference: the worst value of each objective that counts, in the objectives' order, say an accuracy of 0 and 5 MB;
    it must be stated with the figure, which means nothing without it.  Points that are no better than it in both
    objectives add nothing.  A sum of rectangles, one a point of the front.
    """
    names, up = signed(objectives)
    gains = [up[name] * (points[name].astype(float) - worst) for name, worst in zip(names, reference, strict=True)]
    inside = points[(gains[0] > 0) & (gains[1] > 0)]
    staircase = front(inside, objectives)  # the first objective rises, the second falls
    first, second = (
        up[name] * (staircase[name].astype(float) - worst) for name, worst in zip(names, reference, strict=True)
    )
    return float(((first - first.shift(fill_value=0.0)) * second).sum())
