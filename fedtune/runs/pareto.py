"""Several objectives: the Pareto front of rounds, its hypervolume, and the places of non-dominated sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedtune.core.objectives import WORST, Objective, parse_recorded
from fedtune.core.statistics import figure
from fedtune.core.terminal import short
from fedtune.runs import tables


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
    communication at its end and would be on a front of last rounds.  Of equal points the first stays.  Two objectives
    take O(n log n): sorted by one, the other is scanned; more take O(n · the front).
    """
    names, up = signed(objectives)
    fine = points.dropna(subset=names).reset_index(drop=True)  # labels may be duplicated
    gains = np.column_stack([up[name] * fine[name].to_numpy(float) for name in names])
    if len(names) == 2:
        order = np.lexsort((-gains[:, 0], -gains[:, 1]))
        value = gains[order, 0]
        before = np.maximum.accumulate(np.concatenate([[-np.inf], value]))[:-1]
        return fine.iloc[order[value > before]].reset_index(drop=True)
    best, kept = np.empty_like(gains), list[int]()
    for i in np.lexsort(-gains.T[::-1]):  # what dominates a point, or equals it, comes before it
        if not (best[: len(kept)] >= gains[i]).all(1).any():
            best[len(kept)] = gains[i]
            kept.append(int(i))
    return fine.iloc[kept[::-1]].reset_index(drop=True)


def front_table(points: pd.DataFrame, searched: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a front's points: at most ten, evenly taken along the first objective, the best first."""
    columns, rows = [c for c in points if not c.startswith(tables.CONFIG)], []
    places = np.linspace(len(points) - 1, 0, min(10, len(points))).round().astype(int)
    for row in points.iloc[places].to_dict("records"):
        shown = [figure(c, row[c]) if isinstance(row[c], float) else str(row[c]) for c in columns]
        config = tables.plain({n: row.get(tables.CONFIG + n) for n in searched})
        rows.append([*shown, *(short(config.get(n)) for n in searched)])
    return [*columns, *searched], rows


def hypervolume(points: pd.DataFrame, objectives: Sequence[str | Objective], reference: Sequence[float]) -> float:
    """The volume between the points' Pareto front and a reference point: exact, in the product of the units.

    reference: the worst value of each objective that counts, in the objectives' order, for example an accuracy of 0 and
    5 MB.  State it with the figure, which means nothing without it.  Points that are not better than it in every
    objective add nothing.  Of two objectives a sum of rectangles, one per point of the front; of three and four a sum
    of slices along the last, so a front of n points takes about n times as long for each objective more.
    """
    names, up = signed(objectives)
    ends = list(zip(names, reference, strict=True))
    best = front(points, objectives)
    gains = np.column_stack([up[name] * (best[name].to_numpy(float) - worst) for name, worst in ends])
    return _volume(gains[(gains > 0).all(1)])


def _volume(gains: np.ndarray) -> float:
    """The volume that points [n, k], all positive, dominate above 0."""
    if gains.shape[1] == 2:
        first, second = gains[np.lexsort((-gains[:, 0], -gains[:, 1]))].T
        top = np.maximum.accumulate(first)
        return float((np.diff(top, prepend=0.0) * second).sum())
    levels = np.unique(gains[:, -1])
    return sum(
        _volume(gains[gains[:, -1] >= z, :-1]) * d for z, d in zip(levels, np.diff(levels, prepend=0.0), strict=True)
    )


def places(vectors: Sequence[Sequence[float]]) -> np.ndarray:
    """Each vector's place, 1 … n, where more is better in every entry.

    By the number of its front, within it by crowding distance, the larger the better, and then by order: the
    non-dominated sorting of Deb et al., 2002, doi:10.1109/4235.996017.
    """
    points = np.array(vectors, dtype=float)
    at_most = np.logical_and.reduce([entry[:, None] <= entry for entry in points.T])
    dominated, left = at_most & ~at_most.T, np.arange(len(points))  # [i, j]: i by j
    number, crowding = np.zeros(len(points)), np.zeros(len(points))
    while len(left):
        on_front = ~dominated[np.ix_(left, left)].any(1)
        number[left[~on_front]] += 1
        crowding[left[on_front]] = _crowding(points[left[on_front]])
        left = left[~on_front]
    place = np.empty(len(points), dtype=int)
    place[np.lexsort((-crowding, number))] = np.arange(1, len(points) + 1)
    return place


def _crowding(points: np.ndarray) -> np.ndarray:
    """The crowding distance of each point of a front [n, k]: infinite at an end of any entry, or without one."""
    distance = np.where((points > -WORST).all(1), 0.0, np.inf)
    for entry in points.T:
        order = np.argsort(entry, kind="stable")
        order = order[entry[order] > -WORST]  # ε is infinite without noise
        if len(order) and (span := np.ptp(entry[order])) > 0:
            distance[order[1:-1]] += (entry[order[2:]] - entry[order[:-2]]) / span
            distance[np.isin(entry, entry[order[[0, -1]]])] = np.inf
    return distance
