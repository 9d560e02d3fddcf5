"""A live view of a search: a table in a terminal, a line per finished trial elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from ray.tune import Callback
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedtune.core.metrics import METRIC
from fedtune.core.terminal import short
from fedtune.runs.trial_states import STATUSES, status


class Progress(Callback):
    """Follows the trials of a search.  Whatever goes wrong in here is swallowed: Tune would end the search over it."""

    def __init__(self, title: str, trials: int, rounds: int, names: list[str]) -> None:
        """names: the hyperparameters to show."""
        self.title, self.trials, self.rounds, self.names = title, trials, rounds, names
        self.began = time.monotonic()
        self.last: dict[str, dict[str, Any]] = {}  # trial id -> its last result
        self.reported: dict[str, list[dict[str, Any]]] = {}  # trial id -> all of them
        self.running: dict[str, dict[str, Any]] = {}  # trial id -> its configuration
        self.ended: dict[str, int] = dict.fromkeys(STATUSES, 0)
        self.best: tuple[float, str, dict[str, Any]] | None = None
        self.live: Live | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tune saves its callbacks with the run; a terminal cannot be saved."""
        return vars(self) | {"live": None, "reported": {}}

    def __enter__(self) -> Progress:
        """Start showing."""
        console = Console(stderr=True)
        if console.is_terminal:
            self.live = Live(console=console, get_renderable=self._table, refresh_per_second=2)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture."""
        if self.live:
            self.live.stop()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial begins."""
        for other in trials:
            if other.status == "PAUSED":
                self.running.pop(other.trial_id, None)
        self.running[trial.trial_id] = dict(trial.config)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A round was played."""
        self.last[trial.trial_id] = result
        self.reported.setdefault(trial.trial_id, []).append(result)
        value = result.get(METRIC)
        if value is not None and not result.get("diverged") and (self.best is None or value > self.best[0]):
            self.best = (value, trial.trial_id, dict(trial.config))

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial ended."""
        self.last.setdefault(trial.trial_id, trial.last_result or {})  # another driver may have heard it
        self._end(trial, status(self.last[trial.trial_id]))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial failed."""
        self._end(trial, "failed")

    def _end(self, trial: Any, how: str) -> None:
        self.running.pop(trial.trial_id, None)
        self.ended[how] += 1
        if self.live is None:
            row = self.last.get(trial.trial_id, {})
            value = f"{row[METRIC]:.4f}" if METRIC in row else "-"
            done = sum(self.ended.values())
            line = (
                f"[{self._elapsed()}] {done}/{self.trials} {trial.trial_id} {how} after "
                f"{row.get('training_iteration', 0)} rounds, {METRIC} {value}{self._best()}"
            )
            print(line, file=sys.stderr, flush=True)

    def _best(self) -> str:
        return f"; peak so far {self.best[0]:.4f} ({self.best[1]})" if self.best else ""

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        return f"{minutes}:{seconds:02d}"

    def _table(self) -> Group:
        counts = ", ".join(f"{n} {how}" for how, n in self.ended.items() if n)
        head = f"{self.title}   {sum(self.ended.values())}/{self.trials} trials ({counts or 'none ended'})   "
        table = Table(box=None, pad_edge=False)
        for column in ("trial", "round", METRIC, *self.names):
            table.add_column(column, justify="right")
        for trial, config in list(self.running.items())[:16]:
            row = self.last.get(trial, {})
            self._row(table, trial, f"{row.get('training_iteration', 0)}/{self.rounds}", row.get(METRIC), config)
        if self.best:
            table.add_section()
            self._row(table, f"peak {self.best[1]}", "", self.best[0], self.best[2], style="bold green")
        return Group(Text(head + self._elapsed()), table)

    def _row(
        self, table: Table, name: str, at: str, value: float | None, config: dict[str, Any], style: str = ""
    ) -> None:
        shown = (short(config.get(n)) for n in self.names)
        table.add_row(name, at, "" if value is None else f"{value:.4f}", *shown, style=style)
