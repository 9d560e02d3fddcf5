"""A search whose rounds are looked up instead of trained: the real searcher and scheduler, on a clock of their own.

Only the part of Ray that assigns trials to slots is replaced.  So a search takes a fraction of a second, and hundreds
of searches show which searcher and which scheduler are worth using.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from fedtune.core.metrics import METRIC
from fedtune.core.objectives import WORST
from fedtune.tuning.promotion import Promotion
from fedtune.tuning.space_types import Config

Curve = Sequence[float]  # the metric after rounds 1, 2, …; one that is shorter than a trial diverges


class SimulatedRound(NamedTuple):
    """A round of a trial, as it was reported."""

    clock: float  # its end; a round takes one unit of time
    trial: int
    config: Config
    round: int
    value: float
    status: str  # running, paused, stopped, finished or diverged


class SimulatedTrial:
    """The part of Ray's trial that schedulers need."""

    def __init__(self, name: str, config: Config, curve: Curve, costs: Mapping[str, Curve]) -> None:
        """A trial that has not begun."""
        self.trial_id, self.config, self.curve, self.costs = name, config, curve, costs
        self.status = Trial.PENDING
        self.last_result: dict[str, Any] = {}

    def set_status(self, status: str) -> None:
        """As Ray's."""
        self.status = status


class SimulatedSearch:
    """A search over looked-up curves.  To schedulers it looks like Ray's controller."""

    def __init__(
        self,
        *,
        searcher: Searcher,
        scheduler: TrialScheduler,
        curve: Callable[[Config], Curve],
        rounds: int,
        trials: int,
        slots: int = 1,
        worst: float = 0.0,
        costs: Callable[[Config], Mapping[str, Curve]] = lambda config: {},
    ) -> None:
        """What is searched.

        curve    the metric round by round, for a configuration that the searcher suggested
        rounds   of a trial that nobody stops
        trials   how many configurations are tried
        slots    trials at once
        worst    the metric of a trial that diverged
        costs    what else it reports round by round, by metric
        """
        self.searcher, self.scheduler, self.curve, self.costs = searcher, scheduler, curve, costs
        self.rounds, self.left, self.slots, self.worst = rounds, trials, slots, worst
        self.trials: list[SimulatedTrial] = []
        self.search_alg: Any = SimpleNamespace(
            is_finished=lambda: self.left == 0,
            on_trial_complete=searcher.on_trial_complete,
            searcher=SimpleNamespace(max_concurrent=slots, room=None),
        )
        self._tune_controller = SimpleNamespace(_mark_trial_to_checkpoint=lambda trial: None)

    def get_live_trials(self) -> list[SimulatedTrial]:
        """The trials that have not ended; Ray's median rule asks."""
        return [t for t in self.trials if t.status != Trial.TERMINATED]

    def stop_trial(self, trial: SimulatedTrial) -> None:
        """End a paused trial, as a scheduler asks for."""
        self.scheduler.on_trial_remove(self, trial)  # type: ignore[arg-type]
        trial.status = Trial.TERMINATED

    def run(self) -> Iterator[SimulatedRound]:
        """Every round in the order in which they end."""
        busy: list[tuple[float, int, SimulatedTrial]] = []
        clock, order = 0.0, itertools.count()
        while True:
            while len(busy) < self.slots and (trial := self._next()) is not None:
                trial.status = Trial.RUNNING
                heapq.heappush(busy, (clock + 1, next(order), trial))
            if not busy:
                return
            clock, _, trial = heapq.heappop(busy)
            yield self._round(clock, trial)
            if trial.status == Trial.RUNNING:
                heapq.heappush(busy, (clock + 1, next(order), trial))

    def _next(self) -> SimulatedTrial | None:
        """The trial that a free slot goes to; None if there is none."""
        room = self.search_alg.searcher.room
        if self.left and (room is None or room()):
            self._add()
        if isinstance(self.scheduler, Promotion):
            trial: Any = self.scheduler.choose_trial_to_run(self)
            return cast(SimulatedTrial | None, trial)
        return next((t for t in reversed(self.trials) if t.status == Trial.PENDING), None)

    def _add(self) -> None:
        self.left -= 1
        name = str(len(self.trials))
        config = self.searcher.suggest(name)
        assert config is not None
        trial = SimulatedTrial(name, config, self.curve(config), self.costs(config))
        self.trials.append(trial)
        self.scheduler.on_trial_add(self, trial)  # type: ignore[arg-type]

    def _round(self, clock: float, trial: SimulatedTrial) -> SimulatedRound:
        """One more round of a trial, and what the scheduler makes of it."""
        t = trial.last_result.get("training_iteration", 0) + 1
        diverged = t > len(trial.curve)
        complete = t == self.rounds and not diverged
        value = self.worst if diverged else trial.curve[t - 1]
        trial.last_result = result = {
            "training_iteration": t,
            "round": t,
            METRIC: value,
            **{name: WORST if diverged else of[t - 1] for name, of in trial.costs.items()},
            "done": complete or diverged,
            "complete": complete,
            "diverged": diverged,
        }
        if result["done"]:
            status = "diverged" if diverged else "finished"
            self.scheduler.on_trial_complete(self, trial, result)  # type: ignore[arg-type]
            self._end(trial)
        else:
            status = self._judge(trial, result)
        return SimulatedRound(clock, int(trial.trial_id), trial.config, t, value, status)

    def _judge(self, trial: SimulatedTrial, result: dict[str, Any]) -> str:
        """Ask the scheduler what becomes of a trial that is not over, and tell the searcher."""
        decision = self.scheduler.on_trial_result(self, trial, result)  # type: ignore[arg-type]
        if decision == TrialScheduler.STOP:
            self._end(trial)
            return "stopped"
        self.searcher.on_trial_result(trial.trial_id, result)
        if decision == TrialScheduler.PAUSE:
            trial.status = Trial.PAUSED
            return "paused"
        return "running"

    def _end(self, trial: SimulatedTrial) -> None:
        self.searcher.on_trial_complete(trial.trial_id, trial.last_result)
        trial.status = Trial.TERMINATED
