"""When hyperparameters begin to have an effect: no trial should be judged before that round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ray.tune.search.sample import Categorical, Integer

from fedtune.core.workload import Workload
from fedtune.tuning.domains import values as values_of
from fedtune.tuning.space_types import Config, Space, distinct


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
    """Each combination in the space of the few hyperparameters that decide when others have an effect."""
    if space.is_grid:
        yield from distinct([{n: p[n] for n in schedule if n in p} for p in space.points])
        return
    values = {}
    for name in schedule:
        domain = space.domains.get(name)
        if isinstance(domain, Categorical):
            values[name] = list(domain.categories)
        elif isinstance(domain, Integer):
            values[name] = list(values_of(domain))
    yield from (dict(zip(values, config, strict=True)) for config in itertools.product(*values.values()))
