"""One hyperparameter's domain: Ray Tune's own ranges and choices, checked and put into words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Quantized, Uniform

from fedtune.core.errors import UserError, shown
from fedtune.core.hyper import Hyperparameter, Range, python_value

FAR = 1e300  # beyond any number that is searched
POINTS = 10_000  # the most points of a grid, which are counted before any is made


def domain_text(domain: Domain) -> str:
    """A domain in words: `0.1..10 log`, `a | b`."""
    if isinstance(domain, Categorical):
        return " | ".join(map(str, domain.categories))
    sampler = domain.get_sampler()
    return range_of(domain).text() + (f" in steps of {sampler.q:g}" if isinstance(sampler, Quantized) else "")


def range_of(domain: Domain) -> Range:
    """A range of Ray Tune's without its steps."""
    low, high = ends("", domain)
    return Range(low, high, isinstance(sampler_of(domain), LogUniform), isinstance(domain, Integer))


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
    if (width := step(domain)) is None:
        return None
    low, high = ends("", domain)
    return int(round((high - low) / width)) + 1


def values(domain: Domain) -> Iterator[Any]:
    """Each value of a finite domain."""
    if isinstance(domain, Categorical):
        yield from domain.categories
        return
    (low, high), width = ends("", domain), step(domain)
    yield from (min(low + i * width, high) for i in range(size(domain) or 0))


def step(domain: Domain) -> Any:
    """How far the values of a range are apart; None where it has them all."""
    sampler = domain.get_sampler()
    return sampler.q if isinstance(sampler, Quantized) else 1 if isinstance(domain, Integer) else None


def nearest(domain: Domain, value: Any) -> Any:
    """The value of a domain that is nearest to a value; the first choice where that is none of them."""
    if isinstance(domain, Categorical):
        return value if value in domain.categories else domain.categories[0]
    low, high = ends("", domain)
    value, width = min(max(value, low), high), step(domain)
    return value if width is None else min(low + round((value - low) / width) * width, high)


def ends(name: str, domain: Domain) -> list[Any]:
    """What to validate of a domain: its categories, or its least and largest value."""
    if isinstance(domain, Categorical):
        if not domain.categories:
            raise UserError(f"{name} needs at least one value to choose from, but its choice is empty")
        return list(domain.categories)
    assert isinstance(domain, Integer | Float)
    quantized = isinstance(domain.get_sampler(), Quantized)  # its upper end is a value, too
    low, high = domain.lower, domain.upper - 1 if isinstance(domain, Integer) and not quantized else domain.upper
    if low > high:
        raise UserError(f"{name} needs low <= high, but its range is {low}..{high}")
    return [low, high]


def as_domain(name: str, value: Any) -> Domain:
    """A value of a space as a domain: a constant is a choice of one.  UserError for what Optuna cannot search."""
    if isinstance(value, Integer | Float | Categorical) and isinstance(sampler_of(value), Uniform | LogUniform):
        return value
    if isinstance(value, Domain):
        raise UserError(
            f"{name} must be a range or a choice of Ray Tune's, uniform or log-uniform, but got "
            f"{type(value).__name__} {type(value.get_sampler()).__name__.strip('_')}"
        )
    return Categorical([value])  # a constant


def fitted(hp: Hyperparameter, domain: Domain) -> Domain:
    """The domain with values of its hyperparameter's type; UserError if it has values that the hyperparameter forbids.

    A range of real numbers would give a whole-numbered hyperparameter values that every trial fails on.
    """
    return _fitted_choice(hp, domain) if isinstance(domain, Categorical) else _fitted_range(hp, domain)


def _fitted_choice(hp: Hyperparameter, domain: Categorical) -> Domain:
    choices = [hp.check(value) for value in ends(hp.name, domain)]
    for value in choices:
        if choices.count(value) > 1:
            raise UserError(
                f"{hp.name} needs different values, but its choice has {value!r} {choices.count(value)} times; "
                "give it once"
            )
        if value is None and hp.default is not None:  # a trial's table could not distinguish it from a missing value
            raise UserError(f"{hp.name} can be searched over text and numbers, but its choice has None; use a word")
    same = all(map(_same, choices, domain.categories))
    return domain if same else Categorical(choices).uniform()


def _fitted_range(hp: Hyperparameter, domain: Domain) -> Domain:
    """The range in normal form: whole numbers below an upper end, or steps between two multiples of the step."""
    low, high, width = _numbers(hp.name, domain)
    integer, log = isinstance(domain, Integer), isinstance(sampler_of(domain), LogUniform)
    if hp.choices:
        raise _others(hp, domain, f"one of {hp.range_text()}", "tune.choice")
    if hp.integer and not integer:
        if not width or width != int(width):
            raise _others(hp, domain, "whole numbers", "tune.randint or tune.lograndint")
        integer, high = True, high + (width == 1)  # Ray excludes the upper end of a qrandint with step 1
    if integer and width == 1:
        width = None
    if width and log:
        raise UserError(
            f"{hp.name} has steps of {width:g} on a log scale, which no searcher supports; use "
            f"tune.{'lograndint' if integer else 'loguniform'}, or tune.choice of the values"
        )
    if width and integer:
        low, high = -(-low // width) * width, high // width * width
    made: Any = Integer(int(low), int(high)) if integer else Float(float(low), float(high))
    made = made.loguniform() if log else made.uniform()
    made = made.quantized(width) if width else made
    _require_declared(hp, made)
    return made


def _numbers(name: str, domain: Domain) -> tuple[Any, Any, Any]:
    """The ends of a range as they were written, and its steps, if it has any; UserError unless these are numbers."""
    assert isinstance(domain, Integer | Float)
    sampler, integer = domain.get_sampler(), isinstance(domain, Integer)
    written = [python_value(domain.lower), python_value(domain.upper)]
    written += [python_value(sampler.q)] if isinstance(sampler, Quantized) else []
    for number in written:
        fits = isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < FAR
        if not fits or (integer and number != int(number)):
            kind = "whole numbers" if integer else "numbers"
            raise UserError(f"{name} needs a range of {kind}, but an end or a step of it is {shown(number)}")
    low, high, *width = written
    if width and not width[0] > 0:
        raise UserError(f"{name} needs steps above 0, but its range has steps of {width[0]}")
    return low, high, width[0] if width else None


def _require_declared(hp: Hyperparameter, domain: Domain) -> None:
    """UserError unless every value of a range is one that its hyperparameter takes."""
    low, high = map(hp.check, ends(hp.name, domain))
    if hp.low is None or hp.high is None:
        return
    for end, width in ((low, step(domain)), (high, step(domain) and -step(domain))):
        while low < high and low <= end <= high and not hp.low <= end <= hp.high:  # a single value beside the range
            hp.check(end)
            if not width:
                raise _others(hp, domain, hp.range_text(), "a narrower one, or tune.choice")
            end += width


def _others(hp: Hyperparameter, domain: Domain, kind: str, use: str) -> UserError:
    return UserError(f"{hp.name} takes {kind}, but its range {domain_text(domain)} has others; use {use}")


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def require_points(count: int) -> None:
    """UserError for a grid that is too large to be made."""
    if count > POINTS:
        raise UserError(f"a grid must have at most {POINTS:,} points, but all combinations of the space are {count:,}")


def varied_text(name: str, domain: Domain) -> str:
    """What `--vary` reads to search this domain in another space."""
    return name if isinstance(domain, Categorical) else f"{name}={range_of(domain).text()}"


def sampler_of(domain: Domain) -> Any:
    """How values are drawn, before they are rounded."""
    sampler = domain.get_sampler()
    return sampler.sampler if isinstance(sampler, Quantized) else sampler
