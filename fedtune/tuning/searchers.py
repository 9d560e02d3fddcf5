"""Searchers by name, as rows like the schedulers; and which searcher, scheduler, space and objectives go together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError, require_known
from fedtune.core.objectives import Goal
from fedtune.tuning import schedulers

if TYPE_CHECKING:  # Ray and Optuna take seconds to import, and `fedtune search --help` names the rows
    from optuna.samplers import BaseSampler
    from ray.tune.search import SearchAlgorithm, Searcher

    from fedtune.tuning.space_types import Config, Space


@dataclass(frozen=True, kw_only=True)
class SearcherKind:
    """A kind of searcher.

    sampler    Optuna's sampler for a seed
    lacks      what it cannot take: several objectives, constraints, conditions under which hyperparameters exist
    is_grid    it tries every point of a grid, in order
    startup    trials that it draws at random before it learns from any; 0: it learns from the first, or never
    """

    sampler: Callable[[int], BaseSampler]
    lacks: tuple[str, ...] = ()
    is_grid: bool = False
    startup: int = 0


def _sampler(name: str, **options: Any) -> Callable[[int], BaseSampler]:
    """Optuna's sampler of that class name, without its warning that it is experimental."""

    def make(seed: int) -> BaseSampler:
        import optuna

        from fedtune.tuning.optuna_searcher import OneThreadGPSampler

        kind = OneThreadGPSampler if name == "GPSampler" else getattr(optuna.samplers, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler: BaseSampler = kind(seed=seed, **options)
        return sampler

    return make


KINDS = {
    "tpe": SearcherKind(sampler=_sampler("TPESampler"), startup=10),
    "random": SearcherKind(sampler=_sampler("RandomSampler")),
    "gp": SearcherKind(sampler=_sampler("GPSampler"), startup=10),
    "cmaes": SearcherKind(
        sampler=_sampler("CmaEsSampler", warn_independent_sampling=False),
        lacks=("objectives", "constraints", "conditions"),
    ),
    "nsga2": SearcherKind(sampler=_sampler("NSGAIISampler"), startup=50),
    "grid": SearcherKind(sampler=_sampler("RandomSampler"), lacks=("conditions",), is_grid=True),
}
SEARCHERS = tuple(KINDS)
EXTENDABLE = tuple(name for name, kind in KINDS.items() if not kind.is_grid)  # a grid has no more points


def extendable(searcher: str | None, scheduler: str | None) -> bool:
    """Whether a search by these can get more trials; population based training keeps no study that says what it did."""
    return searcher in EXTENDABLE and not schedulers.moves_hyperparameters(scheduler)


def find(name: str) -> SearcherKind:
    """The kind of that name; UserError if there is none."""
    require_known("searcher", [name], KINDS)
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
    *,
    population: bool = False,
    **options: Any,
) -> Searcher | SearchAlgorithm:
    """The searcher of that name over the space; `points` are tried first, in order, with values `outside`.

    population: the scheduler moves configurations itself and wants them drawn at random.  study and options are those
    of `OptunaSearcher`.
    """
    from ray.tune.search import BasicVariantGenerator

    from fedtune.tuning.optuna_searcher import OptunaSearcher

    sampler = find(name).sampler(seed)
    if population:
        return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
    space = _of_points(points) if space.is_grid else space
    return OptunaSearcher(space=space, sampler=sampler, study=study, points=points, outside=outside, **options)


def _of_points(points: list[Config]) -> Space:
    """A grid's points as choices, so that Optuna can hold them; what it draws beyond them is never asked for."""
    from ray.tune.search.sample import Categorical

    from fedtune.tuning.space_types import Space

    names = dict.fromkeys(n for p in points for n in p)
    return Space({n: Categorical(list(dict.fromkeys(p[n] for p in points))) for n in names}, [])


def require_combination(searcher: str, scheduler: str, space: Space, goal: Goal, structural: tuple[str, ...]) -> None:
    """UserError for a searcher, scheduler, space and goal that are incompatible.

    structural: hyperparameters that change the shape of a client's weights.
    """
    kind, moves = find(searcher), schedulers.find(scheduler).moves_hyperparameters
    if space.is_grid and not kind.is_grid:
        raise UserError(f"a grid takes --searcher grid, or a space with ranges, but got --searcher {searcher}")
    for what, needed, lacking in (
        ("several objectives need", len(goal.objectives) > 1, "objectives"),
        ("--subject-to needs", bool(goal.constraints), "constraints"),
        ("a space with conditions needs", bool(space.conditions), "conditions"),
    ):
        able = [name for name, other in KINDS.items() if lacking not in other.lacks]
        if needed and (moves or searcher not in able):
            got = f"--scheduler {scheduler}" if moves else f"--searcher {searcher}"
            raise UserError(f"{what} one of {', '.join(able)}, and a scheduler other than pbt, but got {got}")
    if moves:
        _require_population(searcher, default(space, scheduler), space, structural)


def _require_population(searcher: str, only: str, space: Space, structural: tuple[str, ...]) -> None:
    if searcher != only:
        raise UserError(f"--scheduler pbt draws at random and perturbs; use --searcher {only}, but got {searcher}")
    if shaped := [n for n in space.names if n in structural]:
        raise UserError(
            f"--scheduler pbt copies weights between trials, but {shaped[0]} changes their shape, or their ε; fix it "
            f"with --set {shaped[0]}=VALUE"
        )
    if 0 in (paces := getattr(space.domains.get("body_lr_scale"), "categories", ())) and len(paces) > 1:
        raise UserError(
            "--scheduler pbt copies weights between trials, but with body_lr_scale 0 no body is sent; leave 0 out"
        )
