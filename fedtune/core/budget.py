"""How much a trial may use at most, counted in rounds, megabytes or seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

UNITS = ("rounds", "mb", "seconds", "sim_seconds")
SHORT = {"mb": "MB", "seconds": "s", "sim_seconds": "device seconds"}  # in words


class Budget(NamedTuple):
    """A trial's budget.  Schedulers measure progress by how much of it is used, so rungs are in its unit."""

    unit: str = "rounds"
    limit: float = math.inf  # the trial ends here, or after the scenario's rounds if that comes first
    since: int = 1  # the first round in which a trial may be stopped; earlier rounds count as 0

    @property
    def text(self) -> str:
        """Its limit in words: `6 rounds`, `2.5 MB`, `30 s`."""
        return f"{self.limit:g} {SHORT.get(self.unit, self.unit)}"

    @property
    def attribute(self) -> str:
        """The column of a result that schedulers read as time."""
        return "training_iteration" if self.unit == "rounds" else "spent"

    def spent(self, row: dict[str, Any], seconds: float) -> dict[str, float]:
        """The entry to add to a round's row: how much is used after it.  seconds: training and evaluation so far."""
        if self.unit == "rounds":
            return {}
        return {"spent": 0.0 if row["round"] < self.since else self._used(row, seconds)}

    def reached(self, row: dict[str, Any], seconds: float) -> bool:
        """Whether the trial has used up its budget."""
        return self._used(row, seconds) >= self.limit

    def passed(self, rungs: Sequence[float], row: dict[str, Any], seconds: float) -> bool:
        """Whether the trial reached one of these rungs (in the budget's unit) in this round."""
        used, is_first = self._used(row, seconds), self.unit != "rounds" and row["round"] == self.since
        if self.unit != "rounds" and row["round"] < self.since:
            return False
        of_round = {
            "rounds": 1.0,
            "mb": (row.get("up_bytes", 0) + row.get("down_bytes", 0)) / 1e6,
            "seconds": row["seconds"] + row["eval_seconds"],
            "sim_seconds": row.get("round_seconds", 0),
        }[self.unit]
        return any((is_first or used - of_round < rung) and rung <= used for rung in rungs)

    def share(self, row: dict[str, Any], seconds: float) -> float:
        """The share of the budget used after a round, 0 … 1; 0 if the budget is unlimited."""
        return self._used(row, seconds) / self.limit

    def _used(self, row: dict[str, Any], seconds: float) -> float:
        of_row = {"rounds": row["round"], "mb": row.get("comm_mb"), "sim_seconds": row.get("sim_seconds")}
        return float((of_row | {"seconds": seconds})[self.unit])
