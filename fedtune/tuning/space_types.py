"""What a search space is: Ray Tune's own ranges and choices, some under a condition, or the points of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Uniform

from fedtune.core.errors import UserError, shown
from fedtune.core.hyper import Hyperparameter, Range, python_value

Config = dict[str, Any]
Condition = dict[str, tuple[Any, ...]]  # another hyperparameter -> its values under which a domain exists
FAR = 1e300  # beyond any number that is searched
POINTS = 10_000  # the most points of a grid, which are counted before any is made


class When(NamedTuple):
    """A domain under a condition."""

    domain: Domain
    condition: Condition


class Under(NamedTuple):
    """A domain by the value of another hyperparameter, which is fixed where the space is searched."""

    other: str
    domains: Mapping[Any, Domain]


class ByRounds(NamedTuple):
    """A domain by how many rounds a trial has."""

    of: Callable[[int], Domain]


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


def domain_text(domain: Domain) -> str:
    """A domain in words: `0.1..10 log`, `a | b`."""
    return " | ".join(map(str, domain.categories)) if isinstance(domain, Categorical) else range_of(domain).text()


def range_of(domain: Domain) -> Range:
    """A range of Ray Tune's."""
    low, high = ends("", domain)
    return Range(low, high, isinstance(domain.get_sampler(), LogUniform), isinstance(domain, Integer))


def grid_values(name: str, domain: Domain) -> list[Any]:
    """All values of a finite domain; UserError for a range of real numbers."""
    if (count := size(domain)) is None:
        text = domain_text(domain)
        raise UserError(f"a grid needs a list of values, but {name} is the range {text}; use tune.choice")
    require_points(count)
    return list(values(domain))


def size(domain: Domain) -> int | None:
    """How many values a domain has; None of a range of real numbers."""
    if isinstance(domain, Categorical):
        return len(domain.categories)
    return domain.upper - domain.lower if isinstance(domain, Integer) else None


def values(domain: Domain) -> Iterator[Any]:
    """Each value of a finite domain."""
    assert isinstance(domain, Categorical | Integer)
    yield from domain.categories if isinstance(domain, Categorical) else range(domain.lower, domain.upper)


def nearest(domain: Domain, value: Any) -> Any:
    """The value of a domain that is nearest to a value; the first choice where that is none of them."""
    if isinstance(domain, Categorical):
        return value if value in domain.categories else domain.categories[0]
    low, high = ends("", domain)
    value = min(max(value, low), high)
    return round(value) if isinstance(domain, Integer) else value


def ends(name: str, domain: Domain) -> list[Any]:
    """What to validate of a domain: its categories, or its least and largest value."""
    if isinstance(domain, Categorical):
        if not domain.categories:
            raise UserError(f"{name} needs at least one value to choose from, but its choice is empty")
        return list(domain.categories)
    assert isinstance(domain, Integer | Float)
    low, high = domain.lower, domain.upper - isinstance(domain, Integer)  # whole numbers end below the upper one
    if low > high:
        raise UserError(f"{name} needs low <= high, but its range is {low}..{high}")
    return [low, high]


def as_domain(name: str, value: Any) -> Domain:
    """A value of a space as a domain: a constant is a choice of one.  UserError for what Optuna cannot search."""
    if not isinstance(value, Domain):
        return Categorical([value])
    if isinstance(value, Integer | Float | Categorical) and isinstance(value.get_sampler(), Uniform | LogUniform):
        return value
    raise UserError(
        f"{name} must be a range or a choice of Ray Tune's, uniform or log-uniform, but got {type(value).__name__} "
        f"{type(value.get_sampler()).__name__.strip('_')}; or list the values by tune.choice"
    )


def fitted(hp: Hyperparameter, domain: Domain) -> Domain:
    """The domain with values of its hyperparameter's type; UserError for values that the hyperparameter forbids."""
    return _fitted_choice(hp, domain) if isinstance(domain, Categorical) else _fitted_range(hp, domain)


def _fitted_choice(hp: Hyperparameter, domain: Categorical) -> Domain:
    choices = [hp.check(value) for value in ends(hp.name, domain)]
    for value in choices:
        if choices.count(value) > 1:
            raise UserError(f"{hp.name} needs different values, but its choice has {value!r} several times")
        if value is None and hp.default is not None:  # a trial's table could not distinguish it from a missing value
            raise UserError(f"{hp.name} can be searched over text and numbers, but its choice has None; use a word")
    return Categorical(choices).uniform()


def _fitted_range(hp: Hyperparameter, domain: Domain) -> Domain:
    assert isinstance(domain, Integer | Float)
    integer, written = isinstance(domain, Integer), [python_value(domain.lower), python_value(domain.upper)]
    for end in written:
        fits = isinstance(end, int | float) and not isinstance(end, bool) and abs(end) < FAR
        if not fits or (integer and end != int(end)):
            kind = "whole numbers" if integer else "numbers"
            raise UserError(f"{hp.name} needs a range of {kind}, but an end of it is {shown(end)}")
    if hp.choices:
        raise _others(hp, domain, f"one of {hp.range_text()}", "tune.choice")
    if hp.integer and not integer:
        raise _others(hp, domain, "whole numbers", "tune.randint or tune.lograndint")
    made: Any = Integer(*map(int, written)) if integer else Float(*map(float, written))
    low, high = map(hp.check, ends(hp.name, made))
    if hp.low is not None and hp.high is not None and low < high and not hp.low <= low <= high <= hp.high:
        if not integer:  # an end is a single value beside the declared range
            raise _others(hp, domain, hp.range_text(), "a narrower one, or tune.choice")
        for value in (*range(int(low), math.ceil(hp.low)), *range(math.floor(hp.high) + 1, int(high) + 1)):
            hp.check(value)
    return made.loguniform() if isinstance(domain.get_sampler(), LogUniform) else made.uniform()


def _others(hp: Hyperparameter, domain: Domain, kind: str, use: str) -> UserError:
    return UserError(f"{hp.name} takes {kind}, but its range {domain_text(domain)} has others; use {use}")


def require_points(count: int) -> None:
    """UserError for a grid that is too large to be made."""
    if count > POINTS:
        raise UserError(f"a grid must have at most {POINTS:,} points, but all combinations of the space are {count:,}")


def varied_text(name: str, domain: Domain) -> str:
    """What `--vary` reads to search this domain in another space."""
    return name if isinstance(domain, Categorical) else f"{name}={range_of(domain).text()}"
