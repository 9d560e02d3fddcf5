"""Makes a `Space` from a file's definition; any error is refused in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ray.tune.search.sample import Domain

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.hyper import Hyperparameter
from fedtune.core.workload import Workload
from fedtune.tuning.domains import as_domain, domain_text, fitted, require_points
from fedtune.tuning.space_types import Condition, Config, Space, Under, When, distinct, met


def checked(name: str, raw: dict[str, Any] | list[Config], workload: Workload) -> Space:
    """The space without fixed hyperparameters; UserError if it is empty, contradictory or out of range."""
    _require_names(name, raw, workload)
    if isinstance(raw, dict):
        raw = _resolved(name, raw, workload)
        if any(_is_grid(v) for v in raw.values()):
            raw = _combinations(name, raw)
    declared = workload.hyperparameters()
    if isinstance(raw, list):
        require_points(len(raw))
        points = [{n: declared[n].check(v) for n, v in p.items() if n not in workload.pinned} for p in raw]
        space = Space({}, distinct(points))
    else:
        space = _of_ranges(name, raw, declared, workload)
    if not space.names:
        pinned = f"; fixed are {', '.join(workload.pinned)}" if workload.pinned else ""
        raise UserError(
            f"a search needs something to vary, but space {name!r} is empty{pinned}; give --vary, or another --space"
        )
    return space


def _require_names(space: str, raw: Any, workload: Workload) -> None:
    """UserError unless a space is a mapping of hyperparameters, or a list of such."""
    declared = workload.hyperparameters()
    for point in raw if isinstance(raw, list) else [raw]:
        if not isinstance(point, dict):
            raise UserError(
                f"a space is a dict of hyperparameters, or a list of dicts, but {space!r} holds {shown(point)}"
            )
        for n in point:
            if not isinstance(n, str):
                raise UserError(f"a space names hyperparameters by text, but {space!r} has the key {shown(n)}")
            if n not in declared:
                algorithm = workload.name
                kind = f"hyperparameter of {algorithm} in space {space!r}"
                raise unknown(kind, n, declared, f"fedtune list {algorithm}")


def _of_ranges(name: str, raw: dict[str, Any], declared: Mapping[str, Hyperparameter], workload: Workload) -> Space:
    free = {n: v for n, v in raw.items() if n not in workload.pinned}
    conditions = _conditions(name, free, workload)
    plain = {n: v.domain if isinstance(v, When) else v for n, v in free.items() if n in conditions}
    domains = {n: fitted(declared[n], as_domain(n, v)) for n, v in plain.items()}
    ordered = {n: domains[n] for n in _ordered(name, conditions)}
    return Space(ordered, [], {n: c for n, c in conditions.items() if c})


def _resolved(space: str, raw: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """The space with each domain that depends on another hyperparameter as that one is fixed."""

    def resolved(name: str, value: Any) -> Any:
        if isinstance(value, When):
            return value._replace(domain=resolved(name, value.domain))
        if not isinstance(value, Under):
            return value
        if value.other in raw and value.other not in workload.pinned:
            raise UserError(
                f"the range of {name} in space {space!r} depends on {value.other}, which is searched too; give {name} "
                f"one range, for instance {domain_text(next(iter(value.domains.values())))}"
            )
        return value.domains[workload.configuration({})[value.other]]

    return {name: resolved(name, value) for name, value in raw.items()}


def _combinations(name: str, raw: dict[str, Any]) -> list[Config]:
    """All combinations of a space's grids and constants; UserError if there are ranges beside them."""
    ranges = [n for n, v in raw.items() if isinstance(v, Domain | When)]
    if ranges:
        raise UserError(
            f"a space is a grid or has ranges, not both, but in {name!r} {', '.join(ranges)} "
            "are ranges beside grid_search; make them grid_search([...]) too, or use tune.choice"
        )
    lists = {n: _listed(n, name, v["grid_search"]) if _is_grid(v) else [v] for n, v in raw.items()}
    require_points(math.prod(map(len, lists.values())))
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _listed(name: str, space: str, values: Any) -> list[Any]:
    """The values of a grid, from a list or from an array of NumPy's, say."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not (items := list(values)):
        raise UserError(f"grid_search needs a list of values, but that of {name} in {space!r} is {shown(values)}")
    return items


def _conditions(space: str, raw: dict[str, Any], workload: Workload) -> dict[str, Condition]:
    """The condition of each domain that can exist, empty if it has none.  Conditions on fixed values are resolved."""
    declared, fixed, conditions = workload.hyperparameters(), workload.configuration({}), {}
    for name, value in raw.items():
        condition = {}
        for other, values in value.condition.items() if isinstance(value, When) else ():
            if other not in declared:
                raise unknown(f"hyperparameter of {workload.name} in space {space!r}", other, declared)
            condition[other] = tuple(map(declared[other].check, values))
        if met({o: v for o, v in condition.items() if o not in raw}, fixed):
            conditions[name] = {o: v for o, v in condition.items() if o in raw}
    return conditions


def _ordered(space: str, conditions: dict[str, Condition]) -> list[str]:
    """Names ordered so that each comes after those that its condition depends on."""
    out: list[str] = []
    while len(out) < len(conditions):
        ready = [n for n, c in conditions.items() if n not in out and all(o in out for o in c)]
        if not ready:
            raise UserError(
                f"a condition depends on hyperparameters of the space without a cycle, but in space {space!r} "
                f"{', '.join(n for n in conditions if n not in out)} depend on one another or on what never exists"
            )
        out += ready
    return out


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and "grid_search" in value
