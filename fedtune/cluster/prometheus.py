"""A search as metrics of Ray, which Prometheus scrapes and deploy/grafana/fedtune.json draws."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.util.metrics import Counter, Gauge

from fedtune.core.objectives import ACCURACY, Objective
from fedtune.runs.trial_states import status

SEARCH, TRIAL = ("run", "algorithm"), ("run", "algorithm", "trial")
GOAL = ("objective", "mode")  # the metric that trials are judged by, and max or min: which is better
GAUGES = {  # Prometheus knows them with "ray_" before
    "fedtune_objective": ("the objective after a running trial's last round", (*TRIAL, *GOAL)),
    "fedtune_round": ("rounds that a running trial has trained", TRIAL),
    "fedtune_rounds_per_second": ("1 / the seconds of a running trial's last round", TRIAL),
    "fedtune_comm_mb": ("megabytes that a running trial's clients have sent and received", TRIAL),
    "fedtune_best_objective": ("the best value of the objective that any trial has reached", (*SEARCH, *GOAL)),
    "fedtune_trials_running": ("trials that run now", SEARCH),
    "fedtune_gpu_share": ("share of the cluster's GPUs that running trials hold, 0 to 1", SEARCH),
}
COUNTERS = {  # and with "_total" behind
    "fedtune_trials_ended": ("trials that ended; status: finished, stopped, diverged, failed", (*SEARCH, "status")),
}
PERIOD = 1.0  # seconds between two publications: Ray drops a gauge that is not set again within some 20


class Gauges(Callback):
    """Publishes how a search and its running trials stand, about once a second, whatever the rate of results.

    A trial that ended is published once more, then Ray drops its gauges.  Counts are of the whole search, also after a
    resume.  Errors in here are swallowed, because Tune would end the search over them.
    """

    def __init__(self, run: str, algorithm: str, objective: Objective = ACCURACY) -> None:
        """run, algorithm: tags of everything.  objective: what trials are judged by."""
        self.objective, self._tags = objective, {"run": run, "algorithm": algorithm}
        self._goal = {"objective": objective.name, "mode": objective.mode}
        self._metrics: dict[str, Any] = {}  # made at first use, in the process that uses them
        self._ended: set[str] = set()  # trials that are counted
        self._best: float | None = None
        self._next, self._begun = 0.0, False

    def __reduce__(self) -> tuple:
        """Ray's metrics cannot be pickled; all else is read from the trials again."""
        return Gauges, (*self._tags.values(), self.objective)

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: dict, **info: Any) -> None:
        """A round was trained; the chance-level row of a diverged trial is ignored."""
        if not result.get("diverged"):
            self._reached(result.get(self.objective.attribute))

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Publish when due; Tune calls this some ten times a second even if nothing happens."""
        if time.monotonic() >= self._next:
            self.on_experiment_end(trials)
            self._next = time.monotonic() + PERIOD

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Publish how the search stands, or ended."""
        try:
            self._publish(trials)
            self._begun = True
        except Exception:
            logging.getLogger(__name__).debug("metrics could not be published", exc_info=True)

    def _reached(self, value: float | None) -> None:
        if value is None or math.isnan(value):
            return
        if self._best is None or self.objective.better(value, self._best):
            self._best = value

    def _publish(self, trials: list[Trial]) -> None:
        running, gpus = 0, 0.0
        for trial in trials:
            row = trial.last_result or {}
            if not self._begun and not row.get("diverged"):  # also an earlier driver's results
                peaks: dict[str, float] = (trial.metric_analysis or {}).get(self.objective.attribute, {})
                self._reached(peaks.get(self.objective.mode))
            if trial.trial_id in self._ended:
                continue
            over = trial.is_finished()
            if trial.status == Trial.RUNNING or (over and self._begun):  # not what ended in another driver's time
                self._trial(trial.trial_id, row)
            if over:
                self._ended.add(trial.trial_id)
                how = "failed" if trial.status == Trial.ERROR else status(row)
                self._metric("fedtune_trials_ended", Counter, COUNTERS).inc(1, {**self._tags, "status": how})
            elif trial.status == Trial.RUNNING:
                running += 1
                holds: Any = trial.placement_group_factory
                gpus += holds.required_resources.get("GPU", 0)
        self._set("fedtune_best_objective", self._best, **self._goal)
        self._set("fedtune_trials_running", running)
        self._set("fedtune_gpu_share", gpus / ray.cluster_resources()["GPU"] if gpus else 0.0)

    def _trial(self, trial: str, row: dict[str, Any]) -> None:
        if row.get("diverged"):  # no round: the last one's figures stay
            return
        seconds = row.get("time_this_iter_s")
        self._set("fedtune_objective", row.get(self.objective.attribute), trial=trial, **self._goal)
        self._set("fedtune_round", row.get("training_iteration"), trial=trial)
        self._set("fedtune_rounds_per_second", 1 / seconds if seconds else None, trial=trial)
        self._set("fedtune_comm_mb", row.get("comm_mb"), trial=trial)

    def _set(self, name: str, value: float | None, **tags: str) -> None:
        if value is not None and math.isfinite(value):
            self._metric(name, Gauge, GAUGES).set(value, {**self._tags, **tags})

    def _metric(self, name: str, kind: Any, declared: dict[str, tuple]) -> Any:
        if name not in self._metrics:
            self._metrics[name] = kind(name, *declared[name])
        return self._metrics[name]
