"""Searchers by name, as rows like the schedulers; and which searcher, scheduler, space and objectives go together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError, unknown
from fedtune.core.objectives import BY_ACCURACY, Goal
from fedtune.tuning import schedulers

if TYPE_CHECKING:  # Ray and Optuna take seconds to import, and `fedtune search --help` names the rows
    from optuna.samplers import BaseSampler
    from ray.tune.search import SearchAlgorithm, Searcher
    from ray.tune.search.sample import Domain

    from fedtune.tuning.space_types import Config, Space


@dataclass(frozen=True, kw_only=True)
class SearcherKind:
    """A kind of searcher.

    sampler            Optuna's sampler for a seed
    objectives         how many objectives it can hold
    takes_conditions   the space may have hyperparameters that exist only where others have certain values
    takes_constraints  it learns which configurations break one, or learns nothing at all
    is_grid            it tries every point of a grid, in order
    startup            trials that it draws at random before it learns from any; 0: it learns from the first, or never
    """

    sampler: Callable[[int], BaseSampler]
    objectives: int = 2
    takes_conditions: bool = True
    takes_constraints: bool = True
    is_grid: bool = False
    startup: int = 0


def _sampler(name: str, **options: Any) -> Callable[[int], BaseSampler]:
    """Optuna's sampler of that class name."""

    def make(seed: int) -> BaseSampler:
        import optuna

        return _quietly(getattr(optuna.samplers, name), seed=seed, **options)

    return make


def _gaussian_process(seed: int) -> BaseSampler:
    from fedtune.tuning.optuna_searcher import OneThreadGPSampler

    return _quietly(OneThreadGPSampler, seed=seed)


def _quietly(sampler: Callable[..., BaseSampler], **options: Any) -> BaseSampler:
    """A sampler, without Optuna's warning that it is experimental."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return sampler(**options)


KINDS = {
    "tpe": SearcherKind(sampler=_sampler("TPESampler"), startup=10),
    "random": SearcherKind(sampler=_sampler("RandomSampler")),
    "gp": SearcherKind(sampler=_gaussian_process, startup=10),
    "cmaes": SearcherKind(
        sampler=_sampler("CmaEsSampler", warn_independent_sampling=False),
        objectives=1,
        takes_conditions=False,
        takes_constraints=False,
    ),
    "nsga2": SearcherKind(sampler=_sampler("NSGAIISampler"), startup=50),
    "grid": SearcherKind(sampler=_sampler("RandomSampler"), takes_conditions=False, is_grid=True),
}
SEARCHERS = tuple(KINDS)
EXTENDABLE = tuple(name for name, kind in KINDS.items() if not kind.is_grid)  # a grid has no more points


def find(name: str) -> SearcherKind:
    """The kind of that name; UserError if there is none."""
    if name not in KINDS:
        raise unknown("searcher", name, KINDS)
    return KINDS[name]


def default(space: Space, scheduler: str) -> str:
    """The searcher where none is asked for."""
    if space.is_grid:
        return "grid"
    return "random" if schedulers.find(scheduler).moves_hyperparameters else "tpe"


def searcher(
    name: str,
    space: Space,
    points: list[Config],
    outside: Sequence[Config],
    seed: int,
    study: str,
    goal: Goal = BY_ACCURACY,
    log: Path | None = None,
    population: bool = False,
    once: bool = False,
) -> Searcher | SearchAlgorithm:
    """The searcher of that name over the space; `points` are tried first, in order, with values `outside`.

    study: its name in Optuna.  log: where it writes down what it suggests.  population: the scheduler moves
    configurations itself and wants them drawn at random.  once: no configuration is suggested twice.
    """
    from ray.tune.search import BasicVariantGenerator

    from fedtune.tuning.optuna_searcher import OptunaSearcher

    sampler = find(name).sampler(seed)
    if population:
        return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
    return OptunaSearcher(
        domains=space.domains or _domains(points),
        conditions=space.conditions,
        sampler=sampler,
        study=study,
        goal=goal,
        points=points,
        outside=outside,
        log=log,
        once=once,
    )


def _domains(points: list[Config]) -> dict[str, Domain]:
    """A grid's points as choices, so that Optuna can hold them; what it draws beyond them is never asked for."""
    from ray.tune.search.sample import Categorical

    names = dict.fromkeys(n for p in points for n in p)
    return {n: Categorical(list(dict.fromkeys(p[n] for p in points))) for n in names}


def require_goal(goal: Goal, searcher: str, scheduler: str) -> None:
    """UserError for two objectives, or constraints, that the searcher or scheduler does not support."""
    kind, judge = find(searcher), schedulers.find(scheduler)
    single = judge.moves_hyperparameters
    if len(goal.objectives) > (1 if single else kind.objectives):
        raise UserError(
            "two objectives need a searcher that handles both, but got "
            f"{_culprit(single, scheduler, searcher)}; use tpe, nsga2, gp or random"
        )
    if goal.constraints and not (judge.takes_constraints and kind.takes_constraints):
        which = _culprit(not judge.takes_constraints, scheduler, searcher)
        raise UserError(f"--subject-to needs tpe, nsga2, gp, random or grid, but got {which}")


def require_combination(searcher: str, scheduler: str, space: Space, structural: tuple[str, ...]) -> None:
    """UserError for a searcher, scheduler and space that are incompatible.

    structural: hyperparameters that change the shape of a client's weights.
    """
    kind, judge = find(searcher), schedulers.find(scheduler)
    if space.is_grid and not kind.is_grid:
        raise UserError(
            f"a grid is tried point by point, but the searcher is {searcher!r}; "
            "use --searcher grid, or a space with ranges"
        )
    if space.conditions and not (judge.takes_conditions and kind.takes_conditions):
        which = _culprit(not judge.takes_conditions, scheduler, searcher)
        raise UserError(f"a space with conditions needs tpe, random, gp or nsga2, but got {which}")
    if not judge.moves_hyperparameters:
        return
    if searcher != default(space, scheduler):
        raise UserError(
            "population based training draws its population at random and perturbs it itself, but the searcher is "
            f"{searcher!r}; use --searcher random"
        )
    fixed = [n for n in space.names if n in structural]
    if fixed:
        raise UserError(
            f"population based training copies weights between trials, but {', '.join(fixed)} changes their shape; "
            f"fix it with --set {fixed[0]}=VALUE"
        )
    paces = getattr(space.domains.get("body_lr_scale"), "categories", ())
    if len({pace == 0 for pace in paces}) > 1:
        raise UserError(
            "population based training copies weights between trials, but with body_lr_scale 0 no body is sent; "
            "leave 0 out, or fix it with --set body_lr_scale=0"
        )


def _culprit(schedulers_fault: bool, scheduler: str, searcher: str) -> str:
    return f"--scheduler {scheduler}" if schedulers_fault else f"--searcher {searcher}"
