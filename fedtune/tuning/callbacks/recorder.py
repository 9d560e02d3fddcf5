"""What trials report, kept for the tables."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ray.tune import Callback

from fedtune.cluster import ray_internals

Row = dict[str, Any]


class TrialRows(Callback, Mapping[str, list[Row]]):
    """Every result of every trial as the driver receives it, in the order of their first ones.

    Those of a trial that has ended are packed: sixty rounds as dictionaries are 240 kB, packed 17 kB; Tune forgets the
    rest.  Tune's own log of a trial is no substitute: population based training rewrites it from a stale copy.
    """

    def __init__(self, before: Mapping[str, list[Row]] | None = None, goal: Collection[str] = ()) -> None:
        """before: results that an earlier driver received, by trial.  goal: the objectives and constraints."""
        self._open: dict[str, list[Row]] = {}
        self._packed = {trial: _pack(some) for trial, some in (before or {}).items()}
        self._goal = goal

    def __getitem__(self, trial: str) -> list[Row]:
        """A trial's rows, as a new list."""
        return _unpack(self._packed[trial]) + self._open.get(trial, [])

    def __iter__(self) -> Iterator[str]:
        """The trials."""
        return iter(self._packed)

    def __len__(self) -> int:
        """How many trials there are."""
        return len(self._packed)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Keep a result that a trial reported."""
        self._packed.setdefault(trial.trial_id, b"")
        self._open.setdefault(trial.trial_id, []).append(result)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has ended; it may still go on."""
        if trial.trial_id in self._open:
            self._packed[trial.trial_id] = _pack(self[trial.trial_id])
            del self._open[trial.trial_id]
        ray_internals.forget_averages(trial, self._goal)

    on_trial_error = on_trial_complete


def _pack(rows: list[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows), 1)


def _unpack(packed: bytes) -> list[Row]:
    rows: list[Row] = pickle.loads(zlib.decompress(packed)) if packed else []
    return rows
