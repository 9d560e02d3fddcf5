"""What trials report, kept for the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune import Callback


class Recorder(Callback):
    """Keeps every result of every trial, as the driver hears it.

    Tune's own log of a trial is no substitute: population based training has it written anew from a stale copy.
    """

    def __init__(self, before: Mapping[str, list[dict[str, Any]]] | None = None) -> None:
        """before: what an earlier driver of the same search heard, by trial."""
        self.rows: dict[str, list[dict[str, Any]]] = {trial: list(rows) for trial, rows in (before or {}).items()}

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Keep a result that a trial reported."""
        self.rows.setdefault(trial.trial_id, []).append(result)
