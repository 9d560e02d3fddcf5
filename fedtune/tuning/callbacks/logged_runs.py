"""A run for every trial in an experiment tracker, by the tracker's public API."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedtune.tuning.space_types import Config
from fedtune.user_code.user_files import plain_name

PROJECT = "fedtune"  # MLflow's experiment and W&B's project, where the user's environment names none
TIME = "timestamp"  # the key of a row's time
AT_ONCE = 1000  # metrics that MLflow takes in one call
LONGEST = 128  # letters of a run's id that W&B takes


class SearchInfo(NamedTuple):
    """The description of a search for a tracker; `search` is its folder's name with that of the parent."""

    search: str
    algorithm: str
    scenario: str
    seed: int
    folder: Path


class Tool(Protocol):
    """A tracker with a run for every trial.  Its errors are raised."""

    def resume(self, lost_trials: Sequence[str]) -> None:
        """An earlier driver logged this search; `lost_trials` are tried again under other names."""

    def begin(self, trial: str, config: Config) -> None:
        """A trial begins, or one that an earlier driver logged continues.  config: all hyperparameters."""

    def log(self, trial: str, rows: Sequence[dict[str, Any]]) -> None:
        """A trial reported rounds.  Some may have been logged before: after a resume, or when a worker had died."""

    def end(self, trial: str, how: str | None) -> None:
        """A trial finished, was stopped, diverged or failed; or, with None, it waits for the search to be resumed."""


class MLflow:
    """Runs in an MLflow store: that of MLFLOW_TRACKING_URI, or mlflow.db beside the study's folder.

    Each is written to in batches of whole rounds, so that what a kill leaves is whole, and says how far it has come.
    """

    def __init__(self, about: SearchInfo) -> None:
        """Open the store, which is made where there is none."""
        from mlflow import MlflowClient

        self.about = about
        default_store = f"sqlite:///{about.folder.parent / 'mlflow.db'}"
        about.folder.parent.mkdir(parents=True, exist_ok=True)
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default_store)
        self.experiment = self._experiment()
        self._resumed = False
        self._runs: dict[str, str] = {}  # trial -> the run's id
        self._last_rounds: dict[str, int] = {}  # trial -> its last round that the store has

    def _experiment(self) -> str:
        if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return experiment_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self.client.get_experiment_by_name(name)
        return experiment.experiment_id if experiment else self.client.create_experiment(name)

    def resume(self, lost_trials: Sequence[str]) -> None:
        """Delete the runs of lost trials."""
        self._resumed = True
        for trial in lost_trials:
            if run := self._find(trial):
                self.client.delete_run(run.info.run_id)

    def begin(self, trial: str, config: Config) -> None:
        """Create the trial's run, or go on with the one that there is."""
        from mlflow.entities import Param

        run = self._find(trial) if self._resumed else None
        if run is None:
            words = {name: str(value) for name, value in self.about._asdict().items() if name != "folder"}
            run = self.client.create_run(
                self.experiment, tags=words | {"trial": trial}, run_name=f"{self.about.algorithm}-{trial}"
            )
        elif run.info.status != "FINISHED":
            self.client.update_run(run.info.run_id, status="RUNNING")
        self._runs[trial] = run.info.run_id
        if config.keys() - run.data.params.keys():
            self.client.log_batch(run.info.run_id, params=[Param(n, str(v)) for n, v in config.items()])

    def log(self, trial: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write the rounds that the store does not have."""
        from mlflow.entities import Metric

        if trial not in self._last_rounds:
            self._last_rounds[trial] = self._last_round(trial, next(n for n in rows[0] if n not in ("round", TIME)))
        new = [row for row in rows if row["round"] > self._last_rounds[trial]]
        batch: list[Metric] = []
        for row in new:
            when, step = int(row[TIME] * 1000), int(row["round"])
            points = [Metric(n, float(v), when, step) for n, v in row.items() if n not in ("round", TIME)]
            if len(batch) + len(points) > AT_ONCE:
                self._write(trial, batch)
                batch = []
            batch += points
        self._write(trial, batch)

    def end(self, trial: str, how: str | None) -> None:
        """Say how the trial ended: in the run's status as MLflow has it, and in its tag `status`."""
        run, state = self._runs.pop(trial), {None: "KILLED", "failed": "FAILED"}.get(how, "FINISHED")
        self.client.set_tag(run, "status", how or "interrupted")
        if self.client.get_run(run).info.status != state:
            self.client.set_terminated(run, state)

    def _find(self, trial: str) -> Any:
        """The run of a trial that an earlier driver logged; None if there is none."""
        runs = self.client.search_runs([self.experiment], f"tags.trial = '{trial}'")
        return next((run for run in runs if run.data.tags.get("algorithm") == self.about.algorithm), None)

    def _last_round(self, trial: str, metric: str) -> int:
        if not self._resumed:
            return 0
        return max((point.step for point in self.client.get_metric_history(self._runs[trial], metric)), default=0)

    def _write(self, trial: str, batch: Sequence[Any]) -> None:
        if batch:
            self.client.log_batch(self._runs[trial], metrics=batch)
            self._last_rounds[trial] = batch[-1].step


class WandB:
    """Runs of Weights & Biases, offline in the study's folder (`wandb sync` uploads them), or as WANDB_MODE says.

    A resumed search writes offline runs again, because runs of a killed process cannot be continued.
    """

    def __init__(self, about: SearchInfo) -> None:
        """Set up the state; nothing is written yet."""
        import wandb

        self.wandb, self.about = wandb, about
        self.mode: Any = os.environ.get("WANDB_MODE") or "offline"
        self.folder = Path(os.environ.get("WANDB_DIR") or about.folder)
        self._runs: dict[str, Any] = {}
        self._last_rounds: dict[str, int] = {}  # trial -> its last round that was logged

    def resume(self, lost_trials: Sequence[str]) -> None:
        """Remove what was written offline of this search."""
        if self.mode == "offline" and "WANDB_DIR" not in os.environ:
            for old in self.folder.glob("wandb/offline-run-*"):
                shutil.rmtree(old, ignore_errors=True)

    def begin(self, trial: str, config: Config) -> None:
        """Begin the trial's run, or go on with it."""
        about, wandb = self.about, self.wandb
        self.folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        name, run_id = f"{about.algorithm}-{trial}", f"{plain_name(about.algorithm)}-{trial}"
        words = {"algorithm": about.algorithm, "scenario": about.scenario, "seed": about.seed, "trial": trial}
        run = self._runs[trial] = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=os.environ.get("WANDB_RUN_GROUP") or about.search,
            id=run_id[-LONGEST:],
            name=name,
            config=words | config,
            mode=self.mode,
            dir=str(self.folder),
            resume="allow",
            reinit="create_new",
            settings=quiet,
        )
        self._last_rounds[trial] = max(0, run.step - 1)

    def log(self, trial: str, rows: Sequence[dict[str, Any]]) -> None:
        """Log the rounds that were not; a round is W&B's step."""
        for row in (row for row in rows if row["round"] > self._last_rounds[trial]):
            self._runs[trial].log({n: v for n, v in row.items() if n != TIME}, step=int(row["round"]))
            self._last_rounds[trial] = row["round"]

    def end(self, trial: str, how: str | None) -> None:
        """End the run, with how the trial ended in its summary."""
        run = self._runs.pop(trial)
        run.summary["status"] = how or "interrupted"
        run.finish(exit_code=1 if how in (None, "failed") else 0)
