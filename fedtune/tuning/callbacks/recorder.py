"""What trials report, kept for the tables."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ray.tune import Callback

from fedtune.cluster import ray_internals

Row = dict[str, Any]


class TrialRows(Mapping[str, list[Row]]):
    """The rows of each trial, packed where it has ended: sixty rounds as dictionaries are 240 kB, packed 17 kB."""

    def __init__(self, rows: Mapping[str, list[Row]]) -> None:
        """rows: those there are already, by trial."""
        self._open: dict[str, list[Row]] = {}
        self._packed = {trial: _pack(some) for trial, some in rows.items()}

    def __getitem__(self, trial: str) -> list[Row]:
        """A trial's rows, as a new list."""
        return _unpack(self._packed[trial]) + self._open.get(trial, [])

    def __iter__(self) -> Iterator[str]:
        """The trials, in the order of their first results."""
        return iter(self._packed)

    def __len__(self) -> int:
        """How many trials there are."""
        return len(self._packed)

    def add(self, trial: str, row: Row) -> None:
        """A trial has reported a row."""
        self._packed.setdefault(trial, b"")
        self._open.setdefault(trial, []).append(row)

    def end(self, trial: str) -> None:
        """Pack the rows of a trial, which may still go on."""
        if trial in self._open:
            self._packed[trial] = _pack(self[trial])
            del self._open[trial]


class ResultRecorder(Callback):
    """Keeps every result of every trial as the driver receives it, and lets Tune forget the rest of an ended trial.

    Tune's own log of a trial is no substitute: population based training rewrites it from a stale copy.
    """

    def __init__(self, before: Mapping[str, list[Row]] | None = None, goal: Collection[str] = ()) -> None:
        """before: results that an earlier driver received, by trial.  goal: the objectives and constraints."""
        self.rows, self._goal = TrialRows(before or {}), goal

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Keep a result that a trial reported."""
        self.rows.add(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has ended."""
        self.rows.end(trial.trial_id)
        ray_internals.forget_averages(trial, self._goal)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has failed for good."""
        self.on_trial_complete(iteration, trials, trial)


def _pack(rows: list[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows), 1)


def _unpack(packed: bytes) -> list[Row]:
    rows: list[Row] = pickle.loads(zlib.decompress(packed)) if packed else []
    return rows
