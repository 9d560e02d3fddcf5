"""Schedulers and searchers by name: thin makers over Ray Tune's and Optuna's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
from optuna.samplers import BaseSampler
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher
from ray.tune.search.sample import Categorical, Float, Integer

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError, unknown
from fedtune.core.metrics import METRIC, MODE, OBJECTIVES
from fedtune.tuning.optuna_searcher import Conditional, Optuna
from fedtune.tuning.promotion import Promotion
from fedtune.tuning.space import Config, Space

SCHEDULERS = ("asha", "promote", "hyperband", "median", "pbt", "none")
REDUCTION = 3  # one of three goes on from a rung: Li et al., arXiv:1810.05934 use 4, with few trials 3 keeps more


def _cmaes(seed: int) -> BaseSampler:
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "cmaes": _cmaes,
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}
SEARCHERS = (*SAMPLERS, "grid")
SINGLE = ("cmaes",)  # searchers that know one objective only


def scheduler(name: str, budget: Budget, grace: float, space: Space) -> TrialScheduler:
    """The scheduler of that name; none judges a trial before it has used `grace` of its budget.

    asha       asynchronous successive halving: rungs at grace · 3^i (Li et al., MLSys 2020, arXiv:1810.05934)
    promote    the same rungs; every trial pauses there, the best third goes on (the paper's algorithm 2)
    hyperband  asha in three brackets with different first rungs.  Asynchronous: Ray's synchronous one pauses trials
               until a bracket is full, which under a limit of concurrent trials never ends
    median     stops what is worse than the median of the running means
    pbt        population based training: every `grace` rounds the worst quarter copies the best and perturbs it
    none       every trial runs to its end
    """
    if name not in SCHEDULERS:
        raise unknown("scheduler", name, SCHEDULERS)
    time: dict[str, Any] = {"time_attr": budget.attribute, "metric": METRIC, "mode": MODE}
    limit: Any = budget.limit  # Ray's types say whole numbers; any will do
    first: Any = min(grace, limit)
    if name == "promote":
        return Promotion(**time, max_t=limit, grace_period=first, reduction_factor=REDUCTION)
    if name in ("asha", "hyperband"):
        brackets = 1 if name == "asha" else 3
        return AsyncHyperBandScheduler(
            **time, max_t=limit, grace_period=first, reduction_factor=REDUCTION, brackets=brackets
        )
    if name == "median":
        return MedianStoppingRule(**time, grace_period=first, min_samples_required=3)
    if name == "pbt":
        lists = {n: list(d.categories) for n, d in space.domains.items() if isinstance(d, Categorical)}
        choices: dict[str, Any] = space.domains | lists  # Ray multiplies what is no list
        return PopulationBasedTraining(
            **time, perturbation_interval=first, hyperparam_mutations=choices, custom_explore_fn=Clamp(space)
        )
    return FIFOScheduler()


class Clamp:
    """Population based training multiplies what it copies by 0.8 or 1.2; this brings it back into the space."""

    def __init__(self, space: Space) -> None:
        """space: of ranges."""
        self.space = space

    def __call__(self, config: Config) -> Config:
        """The configuration with every range's value inside its range."""
        for name, domain in self.space.domains.items():
            if isinstance(domain, Integer):
                config[name] = min(max(round(config[name]), domain.lower), domain.upper - 1)
            elif isinstance(domain, Float):
                config[name] = min(max(config[name], domain.lower), domain.upper)
        return config


def rungs(name: str, limit: float, grace: float) -> list[float]:
    """How much of its budget a trial has used where the scheduler may stop it (its first bracket's rungs)."""
    out, t = [], min(grace, limit)
    while name in ("asha", "promote", "hyperband") and t < limit:
        out.append(t)
        t *= REDUCTION
    return out


def searcher(
    name: str, space: Space, points: list[Config], outside: Sequence[Config], seed: int, study: str,
    objectives: Sequence[str] = (METRIC,), log: Path | None = None, pbt: bool = False,
) -> Searcher | SearchAlgorithm:
    """The searcher of that name over the space; `points` are tried first, in order, with values `outside`.

    log: where it writes down what it suggests.
    """
    if name not in SEARCHERS:
        raise unknown("searcher", name, SEARCHERS)
    if pbt:  # population based training moves configurations itself and wants them drawn at random
        return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = SAMPLERS["random" if name == "grid" else name](seed)
    domains: Any = dict(space.domains or _domains(points))
    if space.conditions:
        domains = Conditional(domains, space.conditions)
    return Optuna(
        objectives, outside, log, space=domains, points_to_evaluate=points or None, sampler=sampler, study_name=study
    )


def remember(scheduler: TrialScheduler | None, seen: Iterable[tuple[str, float, float]]) -> None:
    """Tell a new scheduler what trials reached in another driver's time, as Ray does not keep it: rungs of one bracket.

    seen: trial, used budget and metric, in the order of time.  Other schedulers know only what comes after.
    """
    if isinstance(scheduler, Promotion):
        scheduler.remember(seen)
    elif isinstance(scheduler, AsyncHyperBandScheduler) and len(scheduler._brackets) == 1:
        for name, used, value in seen:
            trial, spent = cast(Any, (SimpleNamespace(trial_id=name), used))
            scheduler._brackets[0].on_result(trial, spent, value)


def _domains(points: list[Config]) -> dict[str, Categorical]:
    """A grid's points as choices, so that Optuna can hold them; what it draws beyond them is never asked for."""
    names = dict.fromkeys(n for p in points for n in p)
    return {n: Categorical(list(dict.fromkeys(p[n] for p in points))) for n in names}


def require_objectives(objectives: tuple[str, ...], searcher_name: str, scheduler_name: str) -> None:
    """UserError for objectives that there are not, or that the searcher or scheduler cannot have."""
    for name in objectives:
        if name not in OBJECTIVES:
            raise unknown("objective", name, OBJECTIVES)
    if len(set(objectives)) != len(objectives) or objectives[0] != METRIC or len(objectives) > 2:
        raise UserError(
            f"--objective is {METRIC}, or {METRIC} and one of {', '.join(list(OBJECTIVES)[1:])} after a comma, but got "
            f"{','.join(objectives)!r}"
        )
    if len(objectives) == 2 and (searcher_name in SINGLE or scheduler_name == "pbt"):
        what = "--scheduler pbt" if scheduler_name == "pbt" else f"--searcher {searcher_name}"
        raise UserError(f"two objectives need a searcher that knows both, but got {what}; use tpe, nsga2, gp or random")


def require_combination(searcher_name: str, scheduler_name: str, space: Space, structural: tuple[str, ...]) -> None:
    """UserError for a searcher, scheduler and space that do not go together."""
    if searcher_name not in SEARCHERS:
        raise unknown("searcher", searcher_name, SEARCHERS)
    if scheduler_name not in SCHEDULERS:
        raise unknown("scheduler", scheduler_name, SCHEDULERS)
    if space.is_grid and searcher_name != "grid":
        raise UserError(
            f"a grid is gone through point by point, but the searcher is {searcher_name!r}; "
            "use --searcher grid, or a space with ranges"
        )
    if space.conditions and (scheduler_name == "pbt" or searcher_name in ("grid", "cmaes")):
        which = "--scheduler pbt" if scheduler_name == "pbt" else f"--searcher {searcher_name}"
        raise UserError(f"a space with conditions needs tpe, random, gp or nsga2, but got {which}")
    if scheduler_name == "pbt":
        if searcher_name != "random":
            raise UserError(
                "population based training draws its population at random and moves it itself, but the searcher is "
                f"{searcher_name!r}; use --searcher random"
            )
        fixed = [n for n in space.names if n in structural]
        if fixed:
            raise UserError(
                f"population based training copies weights between trials, but {', '.join(fixed)} changes their shape; "
                f"pin it with --set {fixed[0]}=VALUE"
            )
