"""Schedulers by name: how each is made, and its properties that the rest of fedtune needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedtune.core.budget import Budget
from fedtune.core.errors import require_known
from fedtune.core.objectives import BY_ACCURACY, Goal

if TYPE_CHECKING:  # Ray takes seconds to import, and `fedtune search --help` names the rows
    from ray.tune.schedulers import TrialScheduler

    from fedtune.tuning.space_types import Config, Space

Results = Iterable[Mapping[str, Any]]  # rows with trial_id, the used budget and what is judged, in the order of time
REDUCTION = 3  # one of three goes on from a rung: Li et al., arXiv:1810.05934 use 4, with few trials 3 keeps more


@dataclass(frozen=True, kw_only=True)
class SchedulerKind:
    """A kind of scheduler, and what the rest of fedtune needs to know of it.

    make                    the scheduler: from where its first judgement falls, where trials end, the space, and what
                            it compares against what
    help                    what it does, in a line
    has_rungs               it judges trials at grace · 3^i of their budget
    judges_all              it compares all objectives, and not only the first
    moves_hyperparameters   it changes a trial's hyperparameters in training, and trials copy weights from others; so it
                            takes no conditions, no constraints and one objective
    pauses                  it lets trials wait and go on later
    remember                gives a new scheduler the results of an earlier driver's trials; None if it cannot take them
    """

    make: Callable[..., TrialScheduler]
    help: str
    has_rungs: bool = False
    judges_all: bool = False
    moves_hyperparameters: bool = False
    pauses: bool = False
    remember: Callable[[Any, Budget, Results], None] | None = None


def _halving(first: float, limit: float, space: Space, judged: dict[str, Any], brackets: int = 1) -> TrialScheduler:
    """Asynchronous: Ray's synchronous one waits for full brackets, which a limit of concurrent trials never fills.

    What stops a trial at a rung is `cutoff` of Ray's `_Bracket`, in real searches and in simulated ones.
    """
    from ray.tune.schedulers import AsyncHyperBandScheduler

    rungs: dict[str, Any] = {"max_t": limit, "grace_period": first}  # Ray's types say whole numbers, any will do
    return AsyncHyperBandScheduler(**judged, **rungs, reduction_factor=REDUCTION, brackets=brackets)


def _promote(first: float, limit: float, space: Space, judged: dict[str, Any]) -> TrialScheduler:
    from fedtune.tuning.promotion import Promotion

    return Promotion(**judged, max_t=limit, grace_period=first, reduction_factor=REDUCTION)


def _front(first: float, limit: float, space: Space, judged: dict[str, Any]) -> TrialScheduler:
    from fedtune.tuning.fronts import Front

    return Front(**judged, max_t=limit, rungs=rungs("front", limit, first), reduction=REDUCTION)


def _median(first: Any, limit: float, space: Space, judged: dict[str, Any]) -> TrialScheduler:
    from ray.tune.schedulers import MedianStoppingRule

    return MedianStoppingRule(**judged, grace_period=first, min_samples_required=3)


def _population(first: float, limit: float, space: Space, judged: dict[str, Any]) -> TrialScheduler:
    from ray.tune.schedulers import PopulationBasedTraining

    mutations: Any = {n: list(getattr(d, "categories", ())) or d for n, d in space.domains.items()}
    moved = {"hyperparam_mutations": mutations, "custom_explore_fn": partial(clamped, space)}
    return PopulationBasedTraining(**judged, **moved, perturbation_interval=first)  # it multiplies what is no list


def _none(first: float, limit: float, space: Space, judged: dict[str, Any]) -> TrialScheduler:
    from ray.tune.schedulers import FIFOScheduler

    return FIFOScheduler()


def _tell_rungs(scheduler: Any, budget: Budget, results: Results) -> None:
    for row in results:
        trial = SimpleNamespace(trial_id=row["trial_id"])
        scheduler.on_trial_add(None, trial)
        scheduler.on_trial_complete(None, trial, row)


KINDS = {
    "asha": SchedulerKind(
        make=_halving,
        help="asynchronous successive halving (Li et al., MLSys 2020, arXiv:1810.05934)",
        has_rungs=True,
        remember=_tell_rungs,
    ),
    "promote": SchedulerKind(
        make=_promote,
        help="the same rungs, but every trial pauses at a rung and the best third goes on (the paper's algorithm 2)",
        has_rungs=True,
        pauses=True,
        remember=lambda scheduler, budget, results: scheduler.remember(
            (row["trial_id"], row[budget.attribute], row[scheduler.metric]) for row in results
        ),
    ),
    "front": SchedulerKind(
        make=_front,
        help="asha's rungs for several objectives: those nearest to the Pareto front go on (arXiv:2106.12639)",
        has_rungs=True,
        judges_all=True,
        remember=_tell_rungs,
    ),
    "hyperband": SchedulerKind(
        make=partial(_halving, brackets=3), help="asha in three brackets with different first rungs", has_rungs=True
    ),
    "median": SchedulerKind(make=_median, help="stops trials that are worse than the median of the running means"),
    "pbt": SchedulerKind(
        make=_population,
        help="population based training: every `grace` rounds the worst quarter copies the best and perturbs it",
        moves_hyperparameters=True,
    ),
    "none": SchedulerKind(make=_none, help="no early stopping"),
}
SCHEDULERS = tuple(KINDS)


def find(name: str) -> SchedulerKind:
    """The kind of that name; UserError if there is none."""
    require_known("scheduler", [name], KINDS)
    return KINDS[name]


def moves_hyperparameters(name: str | None) -> bool:
    """Whether trials under the scheduler of that name, as a record has it, change configuration in training."""
    return name in KINDS and KINDS[name].moves_hyperparameters


def scheduler(
    name: str, budget: Budget, grace: float, space: Space, goal: Goal = BY_ACCURACY, rounds: float = math.inf
) -> TrialScheduler:
    """The scheduler of that name; it judges no trial before that has used `grace` of its budget.

    rounds: of a trial, if it can end by them before it has used its budget.
    """
    kind, first = find(name), {"metric": goal.attribute, "mode": goal.first.mode}
    judged = {"time_attr": budget.attribute} | ({"goal": goal, "rounds": rounds} if kind.judges_all else first)
    return kind.make(min(grace, budget.limit), budget.limit, space, judged)


def default_grace(rounds: int, first_effect: int) -> int:
    """Rounds before a trial of so many is judged, unless somebody says otherwise.

    One round in ten and at least three, as fewer say little of where a trial ends; and none before the first effect of
    whatever varies.
    """
    return min(max(first_effect, rounds // 10, 3), rounds)


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


def clamped(space: Space, config: Config) -> Config:
    """A configuration that population based training has multiplied by 0.8 or 1.2, with every value in the space."""
    from fedtune.tuning.space_types import nearest

    return config | {name: nearest(domain, config[name]) for name, domain in space.domains.items()}
