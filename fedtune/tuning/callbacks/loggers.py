"""Experiment trackers that get every trial while a search runs: MLflow, Weights & Biases.

Ray's own callbacks for them (ray.air.integrations, Ray 2.60) are not used.  While the driver waits, MLflow's writes
each metric in a transaction of its own (80 rounds of 30 metrics into SQLite: 80 s, and 11 s without it), and W&B's
starts two processes for every trial (58 s).  Both begin a second run for a trial that a resumed search continues.  Here
a thread of the driver logs to the tracker once a second, by its public API, and a resumed search continues the same
runs.

Nothing is sent out: MLflow's store is a file beside the folder and W&B is offline, unless the user's environment
says otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from ray.tune import Callback

from fedtune.core.errors import UserError
from fedtune.core.metrics import metrics_in
from fedtune.core.terminal import say
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import STATUSES, reason, status, trial_statuses
from fedtune.tuning.callbacks.logged_runs import TIME, MLflow, Tool, WandB
from fedtune.tuning.callbacks.logged_runs import SearchInfo as About
from fedtune.tuning.options.search import LOGGERS, TENSORBOARD
from fedtune.tuning.space_types import Config

Event = tuple[str, str, Any]  # the trial, the event, and its data
PERIOD = 1.0  # seconds between two writes to a tracker
TRIES = 5  # failures in a row after which logging stops
LAST = 60.0  # seconds that a search waits at its end for pending logs


class TrackerKind(NamedTuple):
    """A tool by its name: the package that it needs, and what it is made by."""

    package: str
    make: Callable[[About], Tool]
    environment: Mapping[str, str]  # set while a search runs, where the user has not set it


KINDS = {
    "mlflow": TrackerKind("mlflow", MLflow, {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}),
    "wandb": TrackerKind("wandb", WandB, {"WANDB_ERROR_REPORTING": "false"}),
}
assert (*KINDS, TENSORBOARD) == LOGGERS  # Ray itself writes TensorBoard's files


class TrialLogger(Callback):
    """Logs a search's trials to a tracker from a thread, so that rounds do not wait.

    Logging stops after five failures in a row, and the search continues: its tables have everything.
    """

    def __init__(self, name: str, tool: Tool, configuration: Callable[[Config], Config]) -> None:
        """configuration: all hyperparameters under a trial's values."""
        self.name, self.tool, self.configuration = name, tool, configuration
        self._events = deque[Event]()
        self._open: dict[str, bool] = {}  # trial -> whether it has not ended
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"fedtune-{name}", daemon=True)

    def __enter__(self) -> TrialLogger:
        """Start logging."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Log the rest."""
        for trial in [trial for trial, open in self._open.items() if open]:
            self._events.append((trial, "end", None))
        self._over.set()
        self._thread.join(LAST)
        if self._thread.is_alive():
            say(f"note: {self.name} is too slow; its last rounds may be missing there, but not in rounds.parquet")

    def catch_up(self, run: Path, before: Mapping[str, list[dict[str, Any]]]) -> None:
        """Log what the trials of a resumed search reported to earlier drivers."""
        lost = sorted(folder.name.split("-")[-1] for folder in RunFiles(run).lost_folder.glob("*"))
        self._events.append(("", "resume", lost))
        how = trial_statuses(run, dict(before))
        for trial, rows in before.items():
            self._begin(trial, rows[0].get("config", {}))
            for row in rows:
                self._hear(trial, row)
            if how.get(trial) in STATUSES and how[trial] != "failed":  # what failed is tried again
                self._end(trial, how[trial])

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A trial reported a round, or that it diverged."""
        self._begin(trial.trial_id, trial.config)
        self._hear(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial ended by itself, or was stopped."""
        self._end(trial.trial_id, status(trial.last_result or {}))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial failed for good."""
        self._begin(trial.trial_id, trial.config)
        self._end(trial.trial_id, "failed")

    def _begin(self, trial: str, config: Config) -> None:
        if trial not in self._open:
            self._open[trial] = True
            self._events.append((trial, "begin", dict(config)))

    def _hear(self, trial: str, result: Mapping[str, Any]) -> None:
        if "round" in result:
            row = {name: value for name, value in metrics_in(result).items() if isinstance(value, Number)}
            self._events.append((trial, "log", [row | {TIME: result.get(TIME, time.time())}]))

    def _end(self, trial: str, how: str) -> None:
        if self._open.get(trial):
            self._open[trial] = False
            self._events.append((trial, "end", how))

    def _work(self) -> None:
        waiting: dict[str, list[Event]] = {}
        over, failed = False, 0
        while not over or waiting:
            over = self._over.wait(PERIOD)
            self._take(waiting)
            try:
                self._tell(waiting)
                failed = 0
            except Exception as error:  # whatever a tool raises
                failed += 1
                if failed == TRIES:
                    why = reason(str(error) or type(error).__name__)
                    say(
                        f"note: logging to {self.name} stopped ({why}); the search continues, and "
                        "rounds.parquet has everything"
                    )
                    return

    def _take(self, waiting: dict[str, list[Event]]) -> None:
        """Group the events by trial, with a trial's rounds together."""
        while self._events:
            trial, what, about = self._events.popleft()
            of_trial = waiting.setdefault(trial, [])
            if what == "log" and of_trial and of_trial[-1][1] == "log":
                of_trial[-1][2].extend(about)
            else:
                of_trial.append((trial, what, about))

    def _tell(self, waiting: dict[str, list[Event]]) -> None:
        """Log to the tracker, and remove what was logged from the queue."""
        for trial, events in list(waiting.items()):
            while events:
                _, what, about = events[0]
                if what == "resume":
                    self.tool.resume(about)
                elif what == "begin":
                    self.tool.begin(trial, self.configuration(about))
                elif what == "log":
                    self.tool.log(trial, about)
                else:
                    self.tool.end(trial, about)
                del events[0]
            del waiting[trial]


def require(names: Sequence[str]) -> None:
    """UserError for a tool whose package is not installed."""
    for name in filter(KINDS.__contains__, names):
        spec = importlib.util.find_spec(KINDS[name].package)
        if spec is None or spec.origin is None:  # a folder of that name, such as W&B's data, is no package
            raise _missing(name)


@contextmanager
def opened(
    names: Sequence[str], about: About, configuration: Callable[[Config], Config]
) -> Iterator[list[TrialLogger]]:
    """The trackers of a search, which get the rest when this ends; UserError for one that cannot be used.

    configuration: all hyperparameters under a trial's values.
    """
    with ExitStack() as stack:
        tellers = []
        for name in filter(KINDS.__contains__, names):
            stack.enter_context(_environment(KINDS[name].environment))
            try:
                tool = KINDS[name].make(about)
            except ImportError as error:
                raise _missing(name) from error
            except Exception as error:  # whatever a tool raises
                raise UserError(f"--logger {name} cannot be used: {reason(str(error))}") from error
            tellers.append(stack.enter_context(TrialLogger(name, tool, configuration)))
        yield tellers


def _missing(name: str) -> UserError:
    return UserError(f"--logger {name} needs a package that is not installed; pip install 'fedtune[{name}]'")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that are set for as long as this lasts, unless the user has set them."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
