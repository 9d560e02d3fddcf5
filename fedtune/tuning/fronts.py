"""Successive halving of several objectives: at a rung the trials nearest to the Pareto front go on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from fedtune.core.objectives import Goal
from fedtune.runs import pareto

Vector = tuple[float, ...]


class Front(FIFOScheduler):
    """Asynchronous successive halving with non-dominated sorting (Schmucker et al., 2021, arXiv:2106.12639).

    At a rung a trial leaves the objectives that it is heading for (`Goal.heading`).  It goes on if its place
    (`pareto.places`) among the n that came there, itself included, is at most max(1, ⌈n / η⌉).  That is what Ray's ASHA
    asks of values: not to be below the (1 - 1/η) quantile of those before.  So with one objective its values are
    compared instead of their places, and every decision is ASHA's.

    It needs no saved state: `remember` rebuilds it from what trials reported.
    """

    def __init__(
        self, *, goal: Goal, rounds: float, time_attr: str, max_t: float, rungs: Iterable[float], reduction: float
    ) -> None:
        """What is compared, and where.

        rounds   a trial's rounds, if it ends by them before it has used its budget
        max_t    the budget, in the unit of time_attr, with which trials end; rungs are below it
        """
        super().__init__()
        self._metric, self._goal, self._rounds = goal.attribute, goal, rounds
        self._time, self._limit, self._reduction = time_attr, max_t, reduction
        self._rungs: list[tuple[float, dict[str, Vector]]] = [(rung, {}) for rung in sorted(rungs, reverse=True)]

    def remember(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take up what trials reported to another driver, in the order of time."""
        for row in rows:
            self._goes_on(row["trial_id"], row)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        """Stop a trial at a rung, or let it go on."""
        if result.get(self._time, 0) >= self._limit:
            return self.STOP
        return self.CONTINUE if self._goes_on(trial.trial_id, result) else self.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict) -> None:
        """A trial that ended by itself, or diverged, is among those of the rung that it reached."""
        self._goes_on(trial.trial_id, result)

    def _goes_on(self, trial: str, result: Mapping[str, Any]) -> bool:
        """Note a result at the highest rung that it newly reaches, and whether the trial goes on from there."""
        needed = {self._time, self._metric, *(o.attribute for o in self._goal.objectives)}
        used = result.get(self._time, -math.inf)
        rung = next((seen for milestone, seen in self._rungs if used >= milestone and trial not in seen), None)
        if rung is None or not needed <= result.keys():
            return True
        progress = max(used / self._limit, result.get("round", 0) / self._rounds)
        rung[trial] = self._goal.heading(result, progress)
        *before, own = _scores(list(rung.values()))
        return not before or not own < np.nanpercentile(before, 100 * (1 - 1 / self._reduction))


def _scores(vectors: list[Vector]) -> np.ndarray:
    """What is compared, more being better: the values of one objective, else places."""
    return np.array(vectors)[:, 0] if len(vectors[0]) == 1 else -pareto.places(vectors)
