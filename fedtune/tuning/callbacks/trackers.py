"""Experiment trackers that get every trial when it has ended: MLflow, Weights & Biases.

Ray's own callbacks for them (ray.air.integrations) take seconds a trial, for which the driver waits, and begin a second
run for a trial that a resumed search continues.  Here a thread writes a trial's rounds in one batch.

Nothing is sent out: the store is a file and W&B is offline, unless the user's environment says otherwise.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any

from ray.tune import Callback

from fedtune.cluster.ray_internals import environment
from fedtune.core.errors import UserError
from fedtune.core.metrics import metrics_in
from fedtune.core.terminal import say
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import ENDED, reason, status, trial_statuses
from fedtune.tuning.options.search import LOGGERS, TENSORBOARD
from fedtune.tuning.plan import SearchPlan
from fedtune.tuning.space_types import Config
from fedtune.user_code.user_files import plain_name

Rows = list[dict[str, Any]]
PROJECT = "fedtune"  # MLflow's experiment and W&B's project, where the user's environment names none
INTERRUPTED = "interrupted"  # the status of a trial that a resumed search may go on with
TIME = "timestamp"  # the key of a row's time
AT_ONCE = 1000  # metrics that MLflow takes in one call
LONGEST = 128  # letters of a run's id that W&B takes
# W&B's settings: it looks at nothing but what it is given
QUIET: dict[str, Any] = {"silent": True, "console": "off", "x_save_requirements": False}
QUIET |= dict.fromkeys(("disable_git", "disable_code", "disable_job_creation", "x_disable_stats"), True)
QUIET |= dict.fromkeys(("x_disable_meta", "x_disable_machine_info"), True)
# what a search sets meanwhile where the user's environment says nothing: they call nobody
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING", "WANDB_ERROR_REPORTING": "false"}
LAST = 60.0  # seconds that a search waits at its end for what is not logged yet


class MLflow:
    """Runs in an MLflow store: that of MLFLOW_TRACKING_URI, or mlflow.db beside the study's folder.

    The tag `status` is written last: a run that has it is whole.
    """

    def __init__(self, p: SearchPlan) -> None:
        """Open the store, which is made where there is none."""
        from mlflow import MlflowClient

        self.about, parent = _about(p), p.folder.parent
        default_store = f"sqlite:///{parent / 'mlflow.db'}"
        parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default_store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        known, given = self.client.get_experiment_by_name(name), os.environ.get("MLFLOW_EXPERIMENT_ID")
        self.experiment = given or (known.experiment_id if known else self.client.create_experiment(name))

    def add(self, trial: str, config: Config, rows: Rows, how: str) -> None:
        """Log a trial that has ended, unless the store has it; what was written in part is deleted.

        config: all hyperparameters.  rows: the metrics of each round, with the round and its time.
        """
        from mlflow.entities import Metric, Param

        if (run := self._find(trial)) and run.data.tags.get("status", INTERRUPTED) != INTERRUPTED:
            return
        self.remove(trial)
        tags = {n: str(value) for n, value in self.about.items()} | {"trial": trial}
        run = self.client.create_run(self.experiment, tags=tags, run_name=f"{tags['algorithm']}-{trial}")
        at = run.info.run_id
        self.client.log_batch(at, params=[Param(n, str(value)) for n, value in config.items()])
        points = []
        for row in rows:
            when, step = int(row[TIME] * 1000), int(row["round"])
            points += [Metric(n, float(value), when, step) for n, value in row.items() if n not in ("round", TIME)]
        for start in range(0, len(points), AT_ONCE):
            self.client.log_batch(at, metrics=points[start : start + AT_ONCE])
        self.client.set_terminated(at, {"failed": "FAILED", INTERRUPTED: "KILLED"}.get(how, "FINISHED"))
        self.client.set_tag(at, "status", how)

    def remove(self, trial: str) -> None:
        """Delete a trial's run, if there is one."""
        if run := self._find(trial):
            self.client.delete_run(run.info.run_id)

    def _find(self, trial: str) -> Any:
        runs = self.client.search_runs([self.experiment], f"tags.trial = '{trial}'")
        return next((run for run in runs if run.data.tags.get("algorithm") == self.about["algorithm"]), None)


class WandB:
    """Runs of Weights & Biases, offline in the study's folder (`wandb sync` uploads them), or as WANDB_MODE says."""

    def __init__(self, p: SearchPlan) -> None:
        """Set up the state; nothing is written yet."""
        import wandb

        self.wandb, self.about = wandb, _about(p)
        self.mode: Any = os.environ.get("WANDB_MODE") or "offline"
        self.folder = Path(os.environ.get("WANDB_DIR") or p.folder)

    def add(self, trial: str, config: Config, rows: Rows, how: str) -> None:
        """Log a trial; a round is W&B's step.  What a server has of it already is not sent again."""
        self.remove(trial)
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {n: value for n, value in self.about.items() if n != "search"}
        run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=os.environ.get("WANDB_RUN_GROUP") or self.about["search"],
            id=self._id(trial),
            name=f"{about['algorithm']}-{trial}",
            config=about | {"trial": trial} | config,
            mode=self.mode,
            dir=str(self.folder),
            resume="allow",
            reinit="create_new",
            settings=self.wandb.Settings(**QUIET),
        )
        for row in (row for row in rows if row["round"] >= run.step):
            run.log({n: value for n, value in row.items() if n != TIME}, step=int(row["round"]))
        run.summary["status"] = how
        run.finish(exit_code=1 if how in ("failed", INTERRUPTED) else 0)

    def remove(self, trial: str) -> None:
        """Remove what was written of a trial offline, in the study's folder."""
        if self.mode == "offline" and "WANDB_DIR" not in os.environ:
            for old in (self.folder / "wandb").glob("offline-run-*"):
                if old.name.endswith(f"-{self._id(trial)}"):
                    shutil.rmtree(old, ignore_errors=True)

    def _id(self, trial: str) -> str:
        return f"{plain_name(self.about['algorithm'])}-{trial}"[-LONGEST:]


Tracker = MLflow | WandB
KINDS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}  # each by its name
assert (*KINDS, TENSORBOARD) == LOGGERS  # Ray itself writes TensorBoard's files


class TrialLogger(Callback):
    """Logs a search's trials to a tracker from a thread, so that rounds do not wait; an error ends the logging."""

    def __init__(self, name: str, tool: Tracker, configuration: Callable[[Config], Config]) -> None:
        """configuration: all hyperparameters under a trial's values.  The driver sets what each trial reported."""
        self.name, self.tool, self.configuration = name, tool, configuration
        self.rows: Mapping[str, Rows] = {}
        self._ended = set[str]()
        self._waiting = queue.SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._work, name=f"fedtune-{name}", daemon=True)

    def __enter__(self) -> TrialLogger:
        """Start logging."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Log the rest, also trials that the clock or the user cut short: Tune does not say that they have ended."""
        for trial in self.rows.keys() - self._ended:
            self._add(trial, self.rows[trial][0].get("config", {}), INTERRUPTED)
        self._waiting.put(None)
        self._thread.join(LAST)
        if self._thread.is_alive():
            say(f"note: {self.name} is too slow; its last trials may be missing there, but not in rounds.parquet")

    def catch_up(self, run: Path) -> None:
        """Log the trials of a resumed search that ended under an earlier driver."""
        for folder in RunFiles(run).lost_folder.glob("*"):
            self._waiting.put(partial(self.tool.remove, folder.name.split("-")[-1]))
        for trial, how in trial_statuses(run, dict(self.rows)).items():
            if trial in self.rows and how in ENDED and how != "failed":  # what failed is tried again
                self._add(trial, self.rows[trial][0].get("config", {}), how)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial ended by itself, or was stopped."""
        if trial.trial_id in self.rows:
            self._add(trial.trial_id, trial.config, status(trial.last_result or {}))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial failed for good."""
        self._add(trial.trial_id, trial.config, "failed")

    def _add(self, trial: str, config: Config, how: str) -> None:
        self._ended.add(trial)
        by_round = {row["round"]: row for row in self.rows.get(trial, ()) if "round" in row}  # some are trained twice
        rows = [
            {n: v for n, v in metrics_in(row).items() if isinstance(v, Number)} | {TIME: row.get(TIME, time.time())}
            for _, row in sorted(by_round.items())
        ]
        self._waiting.put(lambda: self.tool.add(trial, self.configuration(dict(config)), rows, how))

    def _work(self) -> None:
        while tell := self._waiting.get():
            try:
                tell()
            except Exception as error:  # whatever a tool raises, after tries of its own
                why = reason(str(error) or type(error).__name__)
                return say(f"note: logging to {self.name} stopped ({why}); rounds.parquet has everything")


@contextmanager
def opened(p: SearchPlan) -> Iterator[list[TrialLogger]]:
    """The trackers of a search, which get the rest when this ends; UserError for one that cannot be used."""
    with ExitStack() as stack:
        tellers = []
        stack.enter_context(environment({n: v for n, v in ENVIRONMENT.items() if n not in os.environ}))
        for name in filter(KINDS.__contains__, p.options.logger):
            try:
                tool = KINDS[name](p)
            except Exception as error:  # whatever a tool raises
                raise UserError(f"--logger {name} cannot be used: {reason(str(error))}") from error
            tellers.append(stack.enter_context(TrialLogger(name, tool, p.workload.configuration)))
        yield tellers


def _about(p: SearchPlan) -> dict[str, Any]:
    search = f"{p.folder.parent.name}/{p.folder.name}"
    return {"search": search, "algorithm": p.workload.name, "scenario": p.options.scenario, "seed": p.workload.seed}
