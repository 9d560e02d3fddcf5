"""Spaces of finitely many configurations: each of them, and how many there are."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Container, Iterator

from fedtune.core.terminal import say, several
from fedtune.tuning.domains import grid_values, require_points, size, values
from fedtune.tuning.space_types import Config, Space, met


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
    """How many trials there will be: at most one per configuration, as repeating one gives nothing new.

    limit    the number that was asked for
    points   of a grid
    outside  how many are tried that the space does not hold
    moves    the scheduler moves configurations, so that those which begin alike go apart
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
