"""A search while it runs: a table in a terminal or a notebook, a line per ended trial elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pandas as pd
from ray.tune import Callback
from rich.console import Group

from fedtune.core.objectives import WORST
from fedtune.core.statistics import figure, unit_of
from fedtune.core.terminal import AnyWidth, LivePicture, several, short, shortened
from fedtune.runs import overview, tables
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import BROKEN, ENDED, UNTRAINED, status
from fedtune.tuning.plan import SearchPlan

SHOWN = 16  # running trials in a table
Row = dict[str, Any]


class LiveView(Callback):
    """Follows a search's trials and shows them while its window is open.

    Errors in showing are swallowed, because Tune would end the search over them: a terminal may be closed.
    """

    def __init__(self, p: SearchPlan, before: Mapping[str, list[Row]]) -> None:
        """Nothing is shown yet.  before: results that an earlier driver of the same search received, by trial."""
        self.plan, self.objective = p, p.goal.first
        self.began = time.monotonic()
        self.last: dict[str, Row] = {}  # trial -> its last result
        self.configs: dict[str, Row] = {}
        self.running: list[str] = []
        self.ended: dict[str, str] = {}  # trial -> its status
        self.window = LivePicture(self.picture)
        for trial, results in before.items():
            for result in results:
                self._hear(trial, result, result.get("config", {}))
        if p.extended and not p.continued:  # its trials were as long as these
            self._know(tables.best_trial(pd.read_parquet(RunFiles(p.extended).trials_file), p.budget.unit, p.goal))

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has begun."""
        for other in trials:
            if other.status == "PAUSED":
                self._leaves(other.trial_id)
            if other.is_finished() and other.trial_id not in self.ended:  # it ended under an earlier driver
                failed = other.status == "ERROR"
                self.ended[other.trial_id] = "failed" if failed else status(other.last_result or {})
        self._leaves(trial.trial_id)
        self.running.append(trial.trial_id)
        self.configs[trial.trial_id] = dict(trial.config)
        self._show()

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: Row, **info: Any) -> None:
        """A trial has trained a round."""
        self._hear(trial.trial_id, result, trial.config)
        self._show()

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, how: str = "", **info: Any) -> None:
        """A trial has ended."""
        last = self.last.setdefault(trial.trial_id, trial.last_result or {})  # of a result that an earlier driver got
        self._leaves(trial.trial_id)
        self.ended[trial.trial_id] = how or status(last)
        self._show(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has failed."""
        self.on_trial_complete(iteration, trials, trial, "failed")

    def picture(self) -> Group:
        """How the search stands: a line, and a table of the best trial so far, with a mark, and of running ones."""
        how_many = Counter(sorted(self.ended.values(), key=ENDED.index))
        counts = ", ".join(f"{n} {how}" for how, n in how_many.items()) or "none ended"
        head = f"{self.plan.title}   {len(self.ended)}/{several(self.plan.trials, 'trial')} ({counts})"
        best = self.best  # it looks at every trial
        shown = list(dict.fromkeys([*filter(None, [best]), *self.running[:SHOWN]]))
        if not shown:
            return Group(f"{head}   {self._elapsed()}", "starting workers")
        names = shortened(self.plan.space.names)
        columns = ["trial", "round", self.objective.name + unit_of(self.objective.name)[2], *names]
        more = len(self.running) - SHOWN
        below = [f"* the {self._best_of(best)}"] * bool(best) + [f"{more} more are running"] * (more > 0)
        rows = [self._row(trial, trial == best) for trial in shown]
        table = AnyWidth(columns=columns, rows=rows, words=columns[:1], optional=names)
        return Group(f"{head}   {self._elapsed()}", table, *below)

    @property
    def best(self) -> str:
        """The trial that would be chosen if the search ended now; "" if there is none."""
        last = {t: row for t, row in [*self.last.items()] if self._value(row) is not None}  # drawn by another thread
        how = {t: self.ended.get(t) or status(row) for t, row in last.items()}
        return next(iter(overview.chosen(last, how, self.plan.goal, self.plan.budget)), "")

    def line(self, trial: str) -> str:
        """How a trial ended, for a log."""
        last, name, untrained = self.last[trial], self.objective.name, self.ended[trial] == UNTRAINED
        when = "as it would break a bound" if untrained else "before its first round ended"
        if rounds := last.get("training_iteration", 0):
            when = f"after {several(rounds, 'round')}"
            if (score := self._value(last)) is not None:
                when += f", {name} {figure(name, score)} in the last"
        best = ""
        if first := self.best:
            best = f"; {self._best_of(first)} {figure(name, float(self._value(self.last[first]) or 0))} ({first})"
        return f"[{self._elapsed()}] {len(self.ended)}/{self.plan.trials} {trial} {self.ended[trial]} {when}{best}"

    def _hear(self, trial: str, result: Row, config: Row) -> None:
        if result.get("diverged"):  # no round was trained: the last round's figures stay
            self.last[trial] = self.last.get(trial, {}) | {n: result.get(n) for n in ("diverged", BROKEN, "reason")}
            return
        self.last[trial], self.configs[trial] = result, dict(config)

    def _know(self, best: pd.Series | None) -> None:
        """The best trial of the search that this one extends."""
        if best is not None and best["status"] == "finished":
            values = {
                self.objective.attribute: best[self.objective.column],
                "val_loss": best.get("last_val_loss", WORST),
            }
            self.last[best["trial"]] = {**values, "training_iteration": int(best["rounds"]), "complete": True}
            named = {n.removeprefix(tables.CONFIG): v for n, v in best.items() if str(n).startswith(tables.CONFIG)}
            self.configs[best["trial"]] = tables.plain(named)

    def _best_of(self, best: str) -> str:
        """What it is the best of, in words."""
        finished = (self.ended.get(best) or status(self.last[best])) == "finished"
        return f"best of those that {'finished' if finished else 'trained longest'}"

    def _leaves(self, trial: str) -> None:
        if trial in self.running:
            self.running.remove(trial)

    def _value(self, result: Row) -> float | None:
        """The objective in a result; None if it has none, or only the worst value of a diverged trial."""
        value = result.get(self.objective.attribute)
        return None if value is None or abs(value) >= WORST else value

    def _show(self, ended: str = "") -> None:
        with suppress(Exception):
            self.window.update()
            if ended and not self.window.shown:
                print(self.line(ended), file=sys.stderr, flush=True)

    def _elapsed(self) -> str:
        return "{}:{:02d}".format(*divmod(int(time.monotonic() - self.began), 60))

    def _row(self, trial: str, is_best: bool) -> list[str]:
        last, config = self.last.get(trial, {}), self.configs.get(trial, {})
        value, at = self._value(last), f"{last.get('training_iteration', 0)}/{self.plan.workload.rounds}"
        mark, (scale, form, _) = "* " * is_best, unit_of(self.objective.name)
        return [mark + trial, at, "" if value is None else f"{scale * value:{form}}"] + [
            short(config.get(n)) for n in self.plan.space.names
        ]
