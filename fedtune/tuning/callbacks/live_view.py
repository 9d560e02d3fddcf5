"""A search while it runs: a table in a terminal or a notebook, a line per ended trial elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ray.tune import Callback
from rich.console import Group
from rich.live import Live
from rich.table import Table

from fedtune.core.objectives import BY_ACCURACY, EXCESSES, WORST, Goal
from fedtune.core.terminal import console, in_notebook, several, short, watched
from fedtune.runs.trial_states import BROKEN, STATUSES, status

PERIOD = 0.5  # seconds between two pictures
SHOWN = 16  # running trials in a table


class Peak(NamedTuple):
    """The best round of any trial so far."""

    value: float  # of the objective
    trial: str
    round: int
    config: dict[str, Any]


class View(Callback):
    """Follows a search's trials; subclasses show them in `draw` and `ended_one`.

    Errors in showing are swallowed, because Tune would end the search over them.
    """

    def __init__(
        self,
        *,
        title: str,
        trials: int,
        rounds: int,
        names: list[str],
        before: Mapping[str, list[dict[str, Any]]] | None = None,
        goal: Goal = BY_ACCURACY,
    ) -> None:
        """Nothing is shown yet.

        trials, rounds   how many there will be, and how many each has at most
        names            the hyperparameters to show
        before           results that an earlier driver of the same search received, by trial
        goal             its first objective is shown
        """
        self.objective = goal.first
        self.title, self.trials, self.rounds, self.names = title, trials, rounds, names
        self.began, self._begun = time.monotonic(), False
        self.last: dict[str, dict[str, Any]] = {}  # trial -> its last result
        self.running: dict[str, dict[str, Any]] = {}  # trial -> its configuration
        self.ended: dict[str, str] = {}  # trial -> its status
        self.peak: Peak | None = None
        for trial, results in (before or {}).items():
            for result in results:
                self._hear(trial, result, result.get("config", {}))

    def __enter__(self) -> View:
        """Start showing the table."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave the last picture."""

    def draw(self) -> None:
        """Show how the search stands now; called whenever that changed."""

    def ended_one(self, trial: str) -> None:
        """A trial has ended."""

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has begun."""
        for other in trials:
            if other.status == "PAUSED":
                self.running.pop(other.trial_id, None)
            if not self._begun and other.is_finished():  # it ended under an earlier driver
                self.ended.setdefault(other.trial_id, _how(other))
        self._begun = True
        self.running[trial.trial_id] = dict(trial.config)
        self._show(self.draw)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A trial has trained a round."""
        self._hear(trial.trial_id, result, trial.config)
        self._show(self.draw)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has ended."""
        self.last.setdefault(trial.trial_id, trial.last_result or {})  # of a result that an earlier driver received
        self._end(trial.trial_id, status(self.last[trial.trial_id]))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has failed."""
        self._end(trial.trial_id, "failed")

    def picture(self) -> Group:
        """How the search stands: a line, and a table of running trials."""
        counts = {how: list(self.ended.values()).count(how) for how in STATUSES}
        counts_text = ", ".join(f"{n} {how}" for how, n in counts.items() if n)
        progress = f"{len(self.ended)}/{several(self.trials, 'trial')} ({counts_text or 'none ended'})"
        head = f"{self.title}   {progress}   {self.elapsed()}"
        table = Table(box=None, pad_edge=False)
        for column in ("trial", "round", self.objective.name, *self.names):
            table.add_column(column, justify="right")
        if self.peak:  # the answer so far comes first
            round_text = f"{self.peak.round}/{self.rounds}"
            name = f"best round so far {self.peak.trial}"
            self._row(table, name, round_text, self.peak.value, self.peak.config, style="bold green")
            table.add_section()
        for trial, config in list(self.running.items())[:SHOWN]:
            last = self.last.get(trial, {})
            self._row(table, trial, f"{last.get('training_iteration', 0)}/{self.rounds}", self._value(last), config)
        if (more := len(self.running) - SHOWN) > 0:
            table.caption = f"{more} more are running"
        return Group(head, table)

    def elapsed(self) -> str:
        """Minutes and seconds since the search began, or was resumed."""
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        return f"{minutes}:{seconds:02d}"

    def _hear(self, trial: str, result: dict[str, Any], config: dict[str, Any]) -> None:
        if result.get("diverged"):  # no round was trained: the last round's figures stay
            self.last[trial] = self.last.get(trial, {}) | {n: result.get(n) for n in ("diverged", BROKEN)}
            return
        self.last[trial] = result
        value = self._value(result)
        if value is None or any(e > 0 for e in result.get(EXCESSES, ())):
            return
        if self.peak is None or self.objective.better(value, self.peak.value):
            self.peak = Peak(value, trial, result.get("training_iteration", 0), dict(config))

    def _value(self, result: dict[str, Any]) -> float | None:
        """The objective in a result; None if it has none, or only the worst value of a diverged trial."""
        value = result.get(self.objective.attribute)
        return None if value is None or abs(value) >= WORST else value

    def _end(self, trial: str, how: str) -> None:
        self.running.pop(trial, None)
        self.ended[trial] = how
        self._show(lambda: self.ended_one(trial))
        self._show(self.draw)

    def _show(self, how: Callable[[], None]) -> None:
        try:
            how()
        except Exception:
            pass  # for example the terminal was closed

    def _row(
        self, table: Table, name: str, at: str, value: float | None, config: dict[str, Any], style: str = ""
    ) -> None:
        shown = (short(config.get(n)) for n in self.names)
        table.add_row(name, at, "" if value is None else f"{value:.4f}", *shown, style=style)


class LineView(View):
    """A line per ended trial, on the standard error: for logs."""

    def ended_one(self, trial: str) -> None:
        """Print how the trial ended."""
        last = self.last.get(trial, {})
        when = "before its first round ended"
        if rounds := last.get("training_iteration", 0):
            value = "" if (score := self._value(last)) is None else f", {self.objective.name} {score:.4f} in the last"
            when = f"after {several(rounds, 'round')}{value}"
        peak = ""
        if self.peak:
            peak = f"; best round so far {self.peak.value:.4f} ({self.peak.trial}, round {self.peak.round})"
        line = f"[{self.elapsed()}] {len(self.ended)}/{self.trials} {trial} {self.ended[trial]} {when}{peak}"
        print(line, file=sys.stderr, flush=True)


class Terminal(View):
    """A table in a terminal, drawn twice a second by a thread of its own."""

    live: Live | None = None

    def __enter__(self) -> Terminal:
        """Start drawing in the terminal."""
        self.live = Live(console=console(stderr=True), get_renderable=self.picture, refresh_per_second=1 / PERIOD)
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave the last picture."""
        if self.live:
            self.live.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Tune may save its callbacks; a terminal cannot be saved."""
        return vars(self) | {"live": None}


class Notebook(View):
    """A table in a notebook's cell, which is replaced as the search goes on."""

    handle: Any = None
    due = 0.0  # when to draw again

    def __enter__(self) -> Notebook:
        """Show the first picture in the cell that runs."""
        from IPython.display import HTML, display

        self.handle = display(HTML(self.html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and leave the last picture."""
        self.due = 0.0
        self._show(self.draw)

    def __getstate__(self) -> dict[str, Any]:
        """Tune may save its callbacks; a cell cannot be saved."""
        return vars(self) | {"handle": None}

    def draw(self) -> None:
        """Replace the picture, now and then."""
        if self.handle and time.monotonic() >= self.due:
            from IPython.display import HTML

            self.due = time.monotonic() + PERIOD
            self.handle.update(HTML(self.html()))

    def html(self) -> str:
        """The picture as a page shows it."""
        page = console(width=160, record=True, file=io.StringIO())
        page.print(self.picture())
        return page.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def fitting_view() -> type[View]:
    """How to show a search here: in a notebook's cell, in a terminal, or as lines."""
    if in_notebook():
        return Notebook
    return Terminal if watched() else LineView


def _how(trial: Any) -> str:
    return "failed" if trial.status == "ERROR" else status(trial.last_result or {})
