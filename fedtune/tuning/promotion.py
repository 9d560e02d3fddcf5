"""Successive halving by promotion: every trial pauses at a rung, and the best of each rung are continued first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.utils import flatten_dict

from fedtune.cluster import ray_internals

BUSY = (Trial.RUNNING, Trial.PENDING)  # trials that have a slot, or are about to


@dataclass
class Rung:
    """The trials that reached a milestone, and those that were promoted from it."""

    milestone: float
    reached: dict[str, tuple[float, float]] = field(default_factory=dict)  # trial -> time and value when it reached it
    promoted: set[str] = field(default_factory=set)


class Rungs:
    """The rule of promotion, without Ray: algorithm 2 of Li et al., MLSys 2020, arXiv:1810.05934.

    Of the n trials that reached a rung the best ⌊n / η⌋ are promoted, each once; higher rungs come first.  Of equals
    the one that reached it earlier is the better.
    """

    def __init__(self, grace: float, limit: float, reduction: float, mode: str = "max") -> None:
        """Rungs at grace · reductionⁱ below the limit, at which trials end by themselves."""
        self.rungs: list[Rung] = []
        while grace < limit:
            self.rungs.append(Rung(grace))
            grace *= reduction
        self.reduction, self.sign = reduction, -1.0 if mode == "min" else 1.0

    def record(self, trial: str, time: float, value: float) -> None:
        """Note that a trial reported at a time: it reached all rungs up to there, and was promoted from those before.

        It keeps the value with which it reached a rung: rounds are trained again after a worker has died.
        """
        rungs = [r for r in self.rungs if time >= r.milestone]
        for rung in rungs:
            if rung is not rungs[-1] or time > rung.reached.get(trial, (time,))[0]:
                rung.promoted.add(trial)
            rung.reached.setdefault(trial, (time, value))

    def waiting(self, trial: str) -> Rung | None:
        """The rung at which a trial waits to be promoted; None if it waits at none."""
        last = next((r for r in reversed(self.rungs) if trial in r.reached), None)
        return None if last is None or trial in last.promoted else last

    def promotable(self, paused: Collection[str]) -> str | None:
        """The paused trial that the rule promotes next."""
        return self._first_of(paused, lambda rung: int(len(rung.reached) / self.reduction))

    def furthest(self, paused: Collection[str]) -> str | None:
        """The best of the trials paused at the highest rung, where the rule promotes none."""
        return self._first_of(paused, lambda rung: len(rung.reached))

    def _first_of(self, paused: Collection[str], among: Callable[[Rung], int]) -> str | None:
        """The first paused trial among so many best of a rung, from the highest rung on."""
        for rung in reversed(self.rungs):
            best = sorted(rung.reached, key=lambda trial: -self.sign * rung.reached[trial][1])[: among(rung)]
            for trial in best:
                if trial in paused and trial not in rung.promoted:
                    return trial
        return None

    def promote(self, trial: str) -> None:
        """Promote a trial from the rung at which it waits."""
        if rung := self.waiting(trial):
            rung.promoted.add(trial)


class RunningLimit(ConcurrencyLimiter):
    """A limit on running trials.  Ray's own also counts paused ones, and so would wait for ever for one to end.

    A `Promotion` says whether there is room for a new one; before the first trial there is.
    """

    room: Callable[[], bool] | None = None

    def suggest(self, trial_id: str) -> dict | None:
        """The searcher's next configuration, if there is room."""
        return self.searcher.suggest(trial_id) if self.room is None or self.room() else None

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Tell the searcher that a trial ended."""
        self.searcher.on_trial_complete(trial_id, result=result, error=error)

    def get_state(self) -> dict:
        """Nothing: the searcher saves itself, and a new scheduler says again whether there is room."""
        return {}


class Promotion(TrialScheduler):
    """Asynchronous successive halving by promotion; its searcher must be within `RunningLimit`.

    A trial that reaches a rung pauses there, in a checkpoint, unless it is promoted at once.  A free slot goes to the
    paused trial that `Rungs` promotes, else to a new trial.  When no more trials come and none can be promoted, the
    best of the highest rung continues all the same until one trial has trained to its end; what is paused then is
    stopped.

    It needs no saved state: `remember` rebuilds it from what trials reported.
    """

    _supports_buffered_results = False  # no result may come after the one with which a trial pauses

    def __init__(
        self, *, time_attr: str, max_t: float, grace_period: float, reduction_factor: float, metric: str, mode: str
    ) -> None:
        """As Ray's ASHAScheduler; max_t is where trials end by themselves, and must be finite."""
        super().__init__()
        self.rungs = Rungs(grace_period, max_t, reduction_factor, mode)
        self._metric, self._time, self._limit = metric, time_attr, max_t
        self._complete = False  # whether some trial has trained to its end
        self._trials: dict[str, Trial] = {}  # those that have not ended
        self._search: Any = None

    def remember(self, seen: Iterable[tuple[str, float, float]]) -> None:
        """Take up what trials reported to another driver: trial, time and value, in the order of their reports."""
        for trial, time, value in seen:
            self.rungs.record(trial, time, value)
            self._complete |= time >= self._limit

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A new trial, one of another driver's, or one whose worker died."""
        self._search = tune_controller.search_alg
        self._search.searcher.room = self._room
        # Ray brings back as pending what had not ended.  One whose worker died while it paused is known already: it
        # trains its last rounds again, and pauses then
        back = trial.trial_id not in self._trials and trial.status == Trial.PENDING
        if back and self.rungs.waiting(trial.trial_id):
            trial.set_status(Trial.PAUSED)
        self._complete |= trial.status == Trial.TERMINATED and _trained_out(trial.last_result)
        self._trials[trial.trial_id] = trial

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        """Pause at a rung, unless the slot that this frees would be its own again."""
        if self._metric not in result or self._time not in result:
            return self.CONTINUE
        name, time = trial.trial_id, result[self._time]
        if not self.rungs.waiting(name):
            self.rungs.record(name, time, result[self._metric])
        rung = self.rungs.waiting(name)
        if rung is None or time < rung.milestone:
            return self.CONTINUE
        if self._next(at_rung=trial) != name:
            return self.PAUSE
        self.rungs.promote(name)
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict) -> None:
        """A trial has ended by itself."""
        self._complete |= _trained_out(result)
        self._trials.pop(trial.trial_id, None)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """A trial was stopped while it was paused."""
        self._trials.pop(trial.trial_id, None)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Nothing to do: a trial that is tried again is added again."""

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The trial to run next: a promoted one, else a new one."""
        name = self._promoted()
        if name is None and self._free():
            name = self._next()
            if name is not None:
                self.rungs.promote(name)
            elif self._over():
                self._stop_paused(tune_controller)
        if name is not None:
            return self._trials[name]
        return next((t for t in self._trials.values() if t.status == Trial.PENDING), None)

    def _paused(self) -> list[str]:
        return [name for name, t in self._trials.items() if t.status == Trial.PAUSED]

    def _busy(self, but: Trial | None = None) -> int:
        return sum(t.status in BUSY and t is not but for t in self._trials.values())

    def _free(self) -> bool:
        return self._busy() < self._search.searcher.max_concurrent

    def _promoted(self) -> str | None:
        return next((name for name in self._paused() if not self.rungs.waiting(name)), None)

    def _room(self) -> bool:
        """Whether a slot is free that no paused trial is to have."""
        return self._free() and self._promoted() is None and self.rungs.promotable(self._paused()) is None

    def _next(self, at_rung: Trial | None = None) -> str | None:
        """The trial to promote into a free slot, or into that of the trial which has reached a rung."""
        paused = self._paused() + ([at_rung.trial_id] if at_rung else [])
        promoted = self.rungs.promotable(paused)
        if promoted is None and not self._complete and self._over(but=at_rung):
            promoted = self.rungs.furthest(paused)
        return promoted

    def _over(self, but: Trial | None = None) -> bool:
        return self._search.is_finished() and not self._busy(but)

    def _stop_paused(self, tune_controller: Any) -> None:
        for name in self._paused():
            trial = self._trials[name]
            # Ray tells the searcher that a paused trial has ended, but not with what result; ours listens once.  And it
            # writes down what became of trials that have a process
            self._search.on_trial_complete(name, result=flatten_dict(trial.last_result))
            tune_controller.stop_trial(trial)
            ray_internals.save_with_next_snapshot(tune_controller, trial)


def _trained_out(result: dict[str, Any]) -> bool:
    return bool(result.get("done") and not result.get("diverged"))
