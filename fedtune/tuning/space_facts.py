"""What is known of a space before anything is trained: its configurations, and from when on hyperparameters matter."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import suppress

from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal
from fedtune.core.terminal import say, several
from fedtune.core.workload import Workload
from fedtune.tuning.space_types import Config, Space, distinct, ends, grid_values, met, require_points, size, values


def as_grid(space: Space) -> Space:
    """All combinations of a space of finite domains."""
    listed = {n: grid_values(n, d) for n, d in space.domains.items()}
    require_points(math.prod(map(len, listed.values())))
    return Space({}, [dict(zip(listed, c, strict=True)) for c in itertools.product(*listed.values())])


def is_finite(space: Space) -> bool:
    """Whether no domain is a range of real numbers."""
    return all(size(domain) is not None for domain in space.domains.values())


def configurations(space: Space) -> Iterator[Config]:
    """Each configuration of a space of finite domains, once; some hyperparameters exist only under a condition."""
    return _grown(space, list(space.domains), {})


def are_all(space: Space, trials: int) -> bool:
    """Whether so many trials try every configuration of the space, where there are finitely many."""
    return not space.is_grid and is_finite(space) and len(list(untried(space, (), trials + 1))) <= trials


def untried(space: Space, tried: Container[str], limit: int) -> Iterator[Config]:
    """Configurations that were not tried, at most so many.  tried: their keys."""
    return itertools.islice((c for c in configurations(space) if key(c) not in tried), limit)


def key(config: Config) -> str:
    """A configuration as a text that is the same for the same values."""
    return json.dumps(config, sort_keys=True)


def _grown(space: Space, names: list[str], config: Config) -> Iterator[Config]:
    if not names:
        yield config
    elif met(space.conditions.get(names[0], {}), config):
        for value in values(space.domains[names[0]]):
            yield from _grown(space, names[1:], config | {names[0]: value})
    else:
        yield from _grown(space, names[1:], config)


def trials(limit: int, space: Space, points: list[Config], outside: int, moves: bool) -> int:
    """How many of so many trials there will be: at most one per configuration, as repeating one gives nothing new.

    points: of a grid.  outside: how many are tried that the space does not hold.  moves: the scheduler moves
    configurations, so that those which begin alike go apart.
    """
    if not space.is_grid and not is_finite(space):
        return limit
    count = len(points) if space.is_grid else outside + sum(1 for _ in itertools.islice(configurations(space), limit))
    if count >= limit:
        return limit
    default = ", the default among them" if space.is_grid else ""
    has = f"the space has only {several(count, 'configuration')}{default}"
    if moves:
        say(f"note: {has}, so some of the {limit} trials start alike; they differ once the scheduler perturbs them")
        return limit
    say(f"note: {has}, and none is tried twice: {several(count, 'trial')} instead of {limit}")
    return count


def idle(space: Space, workload: Workload) -> dict[str, str]:
    """Hyperparameters of a space that can have no effect anywhere in it, each with the reason.

    They have none whatever value any single other hyperparameter takes.
    """
    configs: list[Config] = [{}, *space.points]
    configs += [{n: v} for n, domain in space.domains.items() for v in ends(n, domain)]
    idle_in = []
    for config in configs:
        with suppress(UserError):  # incompatible values; a trial will say so
            idle_in.append(workload.idle(config))
    first, *others = idle_in or [{}]
    return {n: why for n, why in first.items() if n in space.names and all(n in other for other in others)}


def without_idle(space: Space, workload: Workload, recorded: Collection[str] = ()) -> Space:
    """The space without hyperparameters that have no effect in it, unless a record has them as searched.

    Points of a grid stay as they are; UserError if nothing is left.
    """
    out = {n: why for n, why in idle(space, workload).items() if n not in recorded}
    kind, left = ("warning", "") if space.is_grid else ("note", " and is not searched")
    for name, why in out.items():
        say(f"{kind}: {name} has no effect here{left}: {why}")
    if space.is_grid or not out:
        return space
    fixed, domains, conditions = workload.configuration({}), {}, {}
    for name, domain in space.domains.items():
        condition = space.conditions.get(name, {})
        if name not in out and met({n: v for n, v in condition.items() if n in out}, fixed):
            domains[name] = domain
            if still := {n: v for n, v in condition.items() if n not in out}:
                conditions[name] = still
    if not domains:
        raise UserError(f"a search needs something to vary, but no searched hyperparameter has an effect: {why}")
    return space._replace(domains=domains, conditions=conditions)


def require_keepable(space: Space, workload: Workload, goal: Goal) -> None:
    """UserError if it is known that every configuration of the space breaks a constraint.

    Known metrics are monotone in each hyperparameter, so the least excess is at the ends of ranges.
    """

    def excess(config: Config) -> float:
        return max(goal.unkept(workload.known(config)), default=0.0)

    best = min(space.points, key=excess, default={})
    for name, domain in [*space.domains.items()] * 2:  # twice, as at first another may decide alone
        best = min((best | {name: value} for value in ends(name, domain)), key=excess)
    if excess(best) > 0:
        nearest = " and ".join(f"{name} is {value:.6g}" for name, value in workload.known(best).items())
        bounds = " and ".join(map(str, goal.constraints))
        raise UserError(
            f"--subject-to must be within reach, but {nearest} or more in all of the space, and it says {bounds}; "
            "loosen the bound, or widen the space"
        )


def first_effect(space: Space, workload: Workload, within: float = math.inf) -> tuple[int, str]:
    """The latest first-effect round of any hyperparameter of the space, anywhere in it, and that one's name.

    No early stopping should judge a trial before that round: the value could not have mattered yet.  What matters only
    after round `within`, if ever, or is declared late, is left out.
    """
    traits, latest, whose = workload.traits, 1, ""
    for schedule in _schedules(space, traits.schedule):
        first = workload.first_rounds(schedule, [n for n in space.names if n not in traits.late])
        for name, t in first.items():
            if latest < t <= within:
                latest, whose = t, name
    return latest, whose


def _schedules(space: Space, schedule: Sequence[str]) -> Iterator[Config]:
    if space.is_grid:
        yield from distinct([{n: p[n] for n in schedule if n in p} for p in space.points])
        return
    domains = {n: space.domains[n] for n in schedule if n in space.domains}
    lists = {n: list(values(domain)) for n, domain in domains.items() if size(domain) is not None}
    yield from (dict(zip(lists, config, strict=True)) for config in itertools.product(*lists.values()))
