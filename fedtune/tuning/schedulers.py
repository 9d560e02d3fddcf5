"""Schedulers by name: how each is made, and its properties that the rest of fedtune needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedtune.core.budget import Budget
from fedtune.core.errors import unknown
from fedtune.core.objectives import BY_ACCURACY, Goal

if TYPE_CHECKING:  # Ray takes seconds to import, and `fedtune search --help` names the rows
    from ray.tune.schedulers import TrialScheduler

    from fedtune.tuning.space_types import Config, Space

Results = Iterable[tuple[str, float, float]]  # trial, used budget and metric, in the order of time
REDUCTION = 3  # one of three goes on from a rung: Li et al., arXiv:1810.05934 use 4, with few trials 3 keeps more


@dataclass(frozen=True, kw_only=True)
class SchedulerKind:
    """A kind of scheduler, and what the rest of fedtune needs to know of it.

    make                    the scheduler for a budget, a grace period before which it judges none, a space and a goal
    help                    what it does, in a line
    has_rungs               it judges trials at grace · 3^i of their budget
    moves_hyperparameters   it changes a trial's hyperparameters in training, and trials copy weights from others
    pauses                  it lets trials wait and go on later
    remember                gives a new scheduler the results of an earlier driver's trials; None if it cannot take them
    takes_conditions        the space may have hyperparameters that exist only where others have certain values
    takes_constraints       it judges trials by the constraints too
    """

    make: Callable[[Budget, float, Space, Goal], TrialScheduler]
    help: str
    has_rungs: bool = False
    moves_hyperparameters: bool = False
    pauses: bool = False
    takes_conditions: bool = True
    takes_constraints: bool = True
    remember: Callable[[Any, Budget, Results], None] | None = None


def _asha(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    return _successive_halving(budget, grace, goal, brackets=1)


def _hyperband(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    """Asynchronous: Ray's synchronous one waits for full brackets, which a limit of concurrent trials never fills."""
    return _successive_halving(budget, grace, goal, brackets=3)


def _successive_halving(budget: Budget, grace: float, goal: Goal, brackets: int) -> TrialScheduler:
    from ray.tune.schedulers import AsyncHyperBandScheduler

    rungs: dict[str, Any] = {"max_t": budget.limit, "grace_period": _first(budget, grace)}
    return AsyncHyperBandScheduler(**_judged(budget, goal), **rungs, reduction_factor=REDUCTION, brackets=brackets)


def _promote(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    from fedtune.tuning.promotion import Promotion

    first = _first(budget, grace)
    return Promotion(**_judged(budget, goal), max_t=budget.limit, grace_period=first, reduction_factor=REDUCTION)


def _median(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    from ray.tune.schedulers import MedianStoppingRule

    return MedianStoppingRule(**_judged(budget, goal), grace_period=_first(budget, grace), min_samples_required=3)


def _population(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.search.sample import Categorical

    lists = {n: list(d.categories) for n, d in space.domains.items() if isinstance(d, Categorical)}
    mutations: dict[str, Any] = space.domains | lists  # Ray multiplies what is no list
    return PopulationBasedTraining(
        **_judged(budget, goal),
        perturbation_interval=_first(budget, grace),
        hyperparam_mutations=mutations,
        custom_explore_fn=Clamp(space),
    )


def _none(budget: Budget, grace: float, space: Space, goal: Goal) -> TrialScheduler:
    from ray.tune.schedulers import FIFOScheduler

    return FIFOScheduler()


def _tell_rungs(scheduler: Any, budget: Budget, results: Results) -> None:
    for name, used, value in results:
        trial = SimpleNamespace(trial_id=name)
        scheduler.on_trial_add(None, trial)
        scheduler.on_trial_complete(None, trial, {budget.attribute: used, scheduler.metric: value})


def _tell_promotion(scheduler: Any, budget: Budget, results: Results) -> None:
    scheduler.remember(results)


def _tell_nobody(scheduler: Any, budget: Budget, results: Results) -> None:
    """Nothing is judged, so no earlier results are needed."""


KINDS = {
    "asha": SchedulerKind(
        make=_asha,
        help="asynchronous successive halving (Li et al., MLSys 2020, arXiv:1810.05934)",
        has_rungs=True,
        remember=_tell_rungs,
    ),
    "promote": SchedulerKind(
        make=_promote,
        help="the same rungs, but every trial pauses at a rung and the best third goes on (the paper's algorithm 2)",
        has_rungs=True,
        pauses=True,
        remember=_tell_promotion,
    ),
    "hyperband": SchedulerKind(
        make=_hyperband, help="asha in three brackets with different first rungs", has_rungs=True
    ),
    "median": SchedulerKind(make=_median, help="stops trials that are worse than the median of the running means"),
    "pbt": SchedulerKind(
        make=_population,
        help="population based training: every `grace` rounds the worst quarter copies the best and perturbs it",
        moves_hyperparameters=True,
        takes_conditions=False,
        takes_constraints=False,
    ),
    "none": SchedulerKind(make=_none, help="no early stopping", remember=_tell_nobody),
}
SCHEDULERS = tuple(KINDS)


def find(name: str) -> SchedulerKind:
    """The kind of that name; UserError if there is none."""
    if name not in KINDS:
        raise unknown("scheduler", name, KINDS)
    return KINDS[name]


def moves_hyperparameters(name: str | None) -> bool:
    """Whether trials under the scheduler of that name, as a record has it, change configuration in training."""
    return name in KINDS and KINDS[name].moves_hyperparameters


def scheduler(name: str, budget: Budget, grace: float, space: Space, goal: Goal = BY_ACCURACY) -> TrialScheduler:
    """The scheduler of that name; it judges no trial before that has used `grace` of its budget."""
    return find(name).make(budget, grace, space, goal)


def default_grace(rounds: int, first_effect: int) -> int:
    """Rounds before a trial of so many is judged, unless somebody says otherwise.

    One round in ten, as fewer say little of where a trial ends; and none before the first effect of whatever varies.
    """
    return min(max(first_effect, rounds // 10), rounds)


def at_report(grace: int, every: int) -> int:
    """The first round from there on that has a row.  every: the rounds from one row to the next."""
    return -(-grace // every) * every


def rungs(name: str, limit: float, grace: float) -> list[float]:
    """How much of its budget a trial has used where the scheduler may stop it (its first bracket's rungs)."""
    milestones, t = [], min(grace, limit)
    while name in KINDS and KINDS[name].has_rungs and t < limit:
        milestones.append(t)
        t *= REDUCTION
    return milestones


def unjudged(name: str, budget: Budget, grace: float, given_grace: float | None, latest: int, whose: str) -> str:
    """Why a scheduler can do nothing before a trial's end; "" if it can.

    given_grace: the grace period that a user gave.  latest, whose: the last first effect, and of which hyperparameter.
    """
    kind = find(name)
    if kind.make is _none or grace < budget.limit:
        return ""
    missing = "no rung comes" if kind.has_rungs else "no trial is judged"
    what = "no configuration is moved" if kind.moves_hyperparameters else "nothing is stopped early"
    why = f"a trial lasts {budget.limit:g} round"
    if given_grace is not None:
        why = f"--grace is all of a trial's {budget.limit:g} {budget.unit}; give less"
    elif budget.limit > 1:
        why = f"{whose} can have its first effect only in round {latest}, a trial's last; give more --rounds"
    return f"{missing} before the end, so {what}: {why}"


class Clamp:
    """Population based training multiplies what it copies by 0.8 or 1.2; this brings it back into the space."""

    def __init__(self, space: Space) -> None:
        """Keep values inside this space, which is of ranges."""
        self.space = space

    def __call__(self, config: Config) -> Config:
        """The configuration with every value at the nearest that the space has."""
        from fedtune.tuning.domains import nearest

        return config | {name: nearest(domain, config[name]) for name, domain in self.space.domains.items()}


def _judged(budget: Budget, goal: Goal) -> dict[str, Any]:
    """What every scheduler compares, and against what."""
    return {"time_attr": budget.attribute, "metric": goal.attribute, "mode": goal.first.mode}


def _first(budget: Budget, grace: float) -> Any:
    """Where the first judgement may fall; Ray's types say whole numbers, any will do."""
    return min(grace, budget.limit)
