"""A constraint on communication that no configuration can keep, so that a search for one ends at once.

What plain averaging sends is known after one round: its parts, both ways, whatever the values of what is searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ray import tune

from fedtune.core.metrics import TRAFFIC
from fedtune.core.objectives import Constraint
from fedtune.core.terminal import several
from fedtune.tuning.plan import SearchPlan

CLOSE = 1e-9  # share of a bound by which figures that are added up otherwise may differ


ADVICE = "loosen the bound, or change --rounds or --participation"


def why(p: SearchPlan, row: Mapping[str, Any]) -> str:
    """Why no configuration satisfies the constraints, with advice, from the row of one round; "" if one may.

    Only for a search that `sends_alike`.
    """
    return next(filter(None, (_broken(p, c, row) for c in p.goal.constraints if c.name in TRAFFIC)), "")


def _broken(p: SearchPlan, c: Constraint, row: Mapping[str, Any]) -> str:
    rounds, each = p.workload.rounds, float(row[c.name])
    fewest, most = (1, 1) if c.name != "comm_mb" or p.budget.unit == "seconds" else (rounds, rounds)
    if c.name == "comm_mb":
        each /= int(row["round"])
        most = rounds
    if c.name == "comm_mb" and p.budget.unit == "mb" and each:
        fewest, most = (min(rounds, max(1, math.ceil(p.budget.limit / each * (1 + sign * CLOSE)))) for sign in (-1, 1))
    if len(p.goal.objectives) > 1:  # the front is over all rounds: an early one may satisfy it
        fewest = 1
    at = fewest if c.rule == "<=" else most
    if c.excess(at * each) <= CLOSE:
        return ""
    return f"{c} cannot be satisfied: {_cost_text(p, c, each, at)}; {ADVICE}"


def _cost_text(p: SearchPlan, c: Constraint, each: float, rounds: int) -> str:
    unit = "MB" if c.name == "comm_mb" else "bytes"
    in_all = f", {rounds * each:.4g} in {several(rounds, 'round')}" if rounds > 1 else ""
    costs = {"comm_mb": "sends and receives", "up_bytes": "sends", "down_bytes": "receives"}[c.name]
    return f"whatever the configuration, {p.workload.name} {costs} {each:.4g} {unit} a round here{in_all}"


class Unkeepable(tune.Stopper):
    """Ends a search as soon as a round shows that no configuration can keep its constraints."""

    def __init__(self, p: SearchPlan) -> None:
        """p: the search's plan."""
        self._plan, self.why = p, ""
        self._applies = not p.replayed and bool(p.goal.constraints) and p.workload.traits.sends_alike(p.space.names)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Look at a round; no trial ends by this."""
        if self._applies and not self.why and "round" in result:
            self.why = why(self._plan, result)
        return False

    def stop_all(self) -> bool:
        """Whether to end the whole search."""
        return bool(self.why)


def reason(p: SearchPlan, reported: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """Why a search was ended; "" if it was not.  reported: what its trials reported."""
    judge = Unkeepable(p)
    for trial, rows in reported.items():
        for row in rows:
            judge(trial, dict(row))
    return judge.why
