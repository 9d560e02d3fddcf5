"""The final check: the best and the default configuration on seeds that the search has not seen."""

from __future__ import annotations

from typing import Any

import pandas as pd
import ray
from ray.tune import Callback

from fedtune.runs import choice, reading, tables
from fedtune.studies import fresh_seeds, ray_tasks
from fedtune.tuning.plan import StartedSearch
from fedtune.tuning.space_types import Config


def check(s: StartedSearch, config: Config) -> pd.DataFrame:
    """Train the best and the default configuration on fresh seeds: new partitions, initialisations and samples.

    Returns a row per run, with the metrics of its last round.  Each client's results are in the table of clients.
    Each run leaves a file, and is not trained again if the search is resumed.
    """
    p = s.plan
    more: Any = {"title": "final check", "objective": p.goal.first}
    default, seeds = p.default(), p.fresh(p.options.final_seeds)
    candidates = {"best": config} if config == default else {"best": config, "default": default}
    outcomes = fresh_seeds.trained(s, candidates, seeds, p.files.final_folder, checking=True, **more)
    runs = [({"configuration": name, "seed": seed}, outcomes[name, seed]) for seed in seeds for name in candidates]
    if runs:
        scored = [({"algorithm": p.workload.name} | whose, outcome.clients) for whose, outcome in runs]
        reading.write_table(tables.clients_frame(scored), p.files.clients_file)
    figures = p.workload.measures.figures
    rows = [whose | fresh_seeds.last_round(outcome, p.goal, figures) for whose, outcome in runs]
    frame = pd.DataFrame(rows, columns=None if rows else ["configuration", "seed"])
    return frame.sort_values(["configuration", "seed"], ignore_index=True)


class WorkersAhead(Callback):
    """Starts the workers of a choice by more seeds and of the final check on the CPUs that the last trials leave idle.

    Ray ends a trial's worker with the trial, and a new one loads for seconds what trains.
    """

    def __init__(self, s: StartedSearch) -> None:
        """s: one whose trials run on this machine's CPUs; in a cluster it is unknown which node would be used."""
        p = s.plan
        self._trials, self._slots = p.trials, s.concurrent
        largest = max(2 * p.options.final_seeds, choice.TOP * len(p.choosing))
        self._workers = 0 if p.options.address or s.gpus else min(self._slots, largest)
        self._started: list[ray.ObjectRef] = []

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A slot is free: for what comes after, if no trial is to come."""
        going = sum(t is not trial and not t.is_finished() for t in trials)
        if len(trials) < self._trials:
            return
        while len(self._started) < min(self._workers, self._slots - going):
            self._started.append(ray_tasks.start_worker())

    def wait(self) -> None:
        """Until they are ready: Ray would start others for runs that come before."""
        if self._started:
            ray.wait(self._started, num_returns=len(self._started))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """The same of a trial that failed."""
        self.on_trial_complete(iteration, trials, trial)
