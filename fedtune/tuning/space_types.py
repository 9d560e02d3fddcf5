"""What a search space is: domains, some under a condition, or the points of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ray.tune.search.sample import Domain

from fedtune.tuning.domains import domain_text

Config = dict[str, Any]
Condition = dict[str, tuple[Any, ...]]  # another hyperparameter -> its values under which a domain exists


class When(NamedTuple):
    """A domain under a condition."""

    domain: Domain
    condition: Condition


class Under(NamedTuple):
    """A domain by the value of another hyperparameter, which is fixed where the space is searched."""

    other: str
    domains: Mapping[Any, Domain]


def when(domain: Any, **others: Any) -> When:
    """A range that counts only if each hyperparameter named here has the given value, or one of several given values.

    Several values are a tuple, list or array.

    >>> from ray import tune
    >>> from fedtune import when
    >>> space = {
    ...     "optimizer": tune.choice(["sgd", "adam"]),
    ...     "momentum": when(tune.uniform(0, 0.9), optimizer="sgd"),
    ... }
    >>> space["momentum"].condition
    {'optimizer': ('sgd',)}
    """
    return When(domain, {n: tuple(v) if _several(v) else (v,) for n, v in others.items()})


def _several(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str) and getattr(values, "ndim", 1) > 0


def met(condition: Condition, config: Config) -> bool:
    """Whether a configuration fulfils a condition."""
    return all(n in config and config[n] in values for n, values in condition.items())


class Space(NamedTuple):
    """What a search goes over: either domains, or the points of a grid."""

    domains: dict[str, Domain]  # ordered so that each comes after those that its condition depends on
    points: list[Config]
    conditions: dict[str, Condition] = {}  # of the domains that have one

    @property
    def names(self) -> list[str]:
        """The hyperparameters that vary."""
        return list(self.domains) or sorted({n for point in self.points for n in point})

    @property
    def is_grid(self) -> bool:
        """Whether it is a list of points."""
        return bool(self.points)

    def text(self) -> dict[str, str]:
        """Each hyperparameter's domain in words, for people and for run.json."""
        if self.domains:
            return {name: domain_text(d) + self._condition_text(name) for name, d in self.domains.items()}
        return {n: " | ".join(map(str, dict.fromkeys(p[n] for p in self.points if n in p))) for n in self.names}

    def _condition_text(self, name: str) -> str:
        clauses = [f"{n} is {' or '.join(map(str, values))}" for n, values in self.conditions.get(name, {}).items()]
        return f" where {' and '.join(clauses)}" if clauses else ""


def distinct(points: list[Config]) -> list[Config]:
    """The points without repetitions, in their order; their values are plain ones."""
    by_content: dict[tuple[Any, ...], Config] = {}
    for point in points:
        by_content.setdefault(tuple(sorted(point.items())), point)
    return list(by_content.values())
