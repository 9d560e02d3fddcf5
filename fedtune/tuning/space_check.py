"""A space as its file has it, made into a `Space`: whatever is wrong with it is refused in one line."""

from __future__ import annotations

import itertools
from typing import Any

from ray.tune.search.sample import Domain

from fedtune.core.errors import UserError, unknown
from fedtune.federated.experiment import Experiment
from fedtune.tuning.domains import as_domain, ends
from fedtune.tuning.space_types import Condition, Config, Space, When, distinct, met


def checked(name: str, raw: dict[str, Any] | list[Config], experiment: Experiment) -> Space:
    """The space without pinned hyperparameters; UserError if it is empty, contradictory or out of range."""
    if isinstance(raw, dict) and any(_is_grid(v) for v in raw.values()):
        raw = _combinations(name, raw)
    known = experiment.knobs()
    for n in raw if isinstance(raw, dict) else {n for point in raw for n in point}:
        if n not in known:
            raise unknown(f"hyperparameter of {experiment.algorithm} in space {name!r}", n, known)
    if isinstance(raw, list):
        points = [{n: known[n].check(v) for n, v in p.items() if n not in experiment.pinned} for p in raw]
        space = Space({}, distinct(points))
    else:
        free = {n: v for n, v in raw.items() if n not in experiment.pinned}
        conditions = _conditions(name, free, experiment)
        domains = {n: as_domain(n, v.domain if isinstance(v, When) else v) for n, v in free.items() if n in conditions}
        for n, domain in domains.items():
            for value in ends(n, domain):
                known[n].check(value)
        ordered = {n: domains[n] for n in _ordered(name, conditions)}
        space = Space(ordered, [], {n: c for n, c in conditions.items() if c})
    if not space.names:
        pinned = f"; pinned are {', '.join(experiment.pinned)}" if experiment.pinned else ""
        raise UserError(f"a search needs something to vary, but space {name!r} is empty{pinned}; use fedtune run")
    return space


def _combinations(name: str, raw: dict[str, Any]) -> list[Config]:
    """All combinations of a space's grids and constants; UserError if there are ranges beside them."""
    ranges = [n for n, v in raw.items() if isinstance(v, Domain)]
    if ranges:
        raise UserError(
            f"a space is a grid or has ranges, not both, but in {name!r} {', '.join(ranges)} "
            "are ranges beside grid_search; make them grid_search([...]) too, or use tune.choice"
        )
    lists = {n: v["grid_search"] if _is_grid(v) else [v] for n, v in raw.items()}
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _conditions(space: str, raw: dict[str, Any], experiment: Experiment) -> dict[str, Condition]:
    """The condition of each domain that can exist, empty where it has none.  What is not searched is known already."""
    known, fixed, found = experiment.knobs(), experiment.configuration({}), {}
    for name, value in raw.items():
        condition = value.condition if isinstance(value, When) else {}
        for other, values in condition.items():
            if other not in known:
                raise unknown(f"hyperparameter of {experiment.algorithm} in space {space!r}", other, known)
            for v in values:
                known[other].check(v)
        if met({o: v for o, v in condition.items() if o not in raw}, fixed):
            found[name] = {o: v for o, v in condition.items() if o in raw}
    return found


def _ordered(space: str, conditions: dict[str, Condition]) -> list[str]:
    """Names in an order in which what a condition looks at comes before it."""
    out: list[str] = []
    while len(out) < len(conditions):
        ready = [n for n, c in conditions.items() if n not in out and all(o in out for o in c)]
        if not ready:
            raise UserError(
                f"a condition looks at what can be chosen before it, but in space {space!r} "
                f"{', '.join(n for n in conditions if n not in out)} wait for one another or for what never exists"
            )
        out += ready
    return out


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and "grid_search" in value
