"""One hyperparameter's domain: Ray Tune's own ranges and choices, checked and put into words."""

from __future__ import annotations

import math
import re
from typing import Any

from ray.tune.search.sample import Categorical, Domain, Float, Integer, LogUniform, Quantized, Uniform

from fedtune.core.errors import UserError
from fedtune.core.hyper import Knob

EDGE = 0.05  # of a range, on its scale: whatever lies nearer to an end counts as at it
POINTS = 10_000  # of a grid, counted before any is made


def domain_text(domain: Domain) -> str:
    """A domain in words: `0.1 … 10 (log)`, `a | b`."""
    if isinstance(domain, Categorical):
        return " | ".join(map(str, domain.categories))
    low, high = ends("", domain)
    return f"{low:g} … {high:g}{' (log)' if isinstance(_sampler(domain), LogUniform) else ''}"


def edge(value: Any, text: str) -> str:
    """Whether a value lies at the `lower` or `upper` end of a range, written as in run.json; "" if at none.

    Nor at one beyond which there is nothing: a weight or share begins at 0, a number of things at 1.
    """
    written = re.match(r"(\S+) … (\S+)( \(log\))?", str(text))
    if not written or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    try:
        low, high, at = float(written[1]), float(written[2]), float(value)
        if written[3]:
            low, high, at = math.log(low), math.log(high), math.log(at) if at > 0 else -math.inf
    except ValueError:
        return ""
    if not low < high:
        return ""
    share, least = (at - low) / (high - low), float(written[1])
    if share <= EDGE:
        return "" if least == 0 or (least == 1 and isinstance(value, int)) else "lower"
    return "upper" if share >= 1 - EDGE else ""


def grid_values(name: str, domain: Domain) -> list[Any]:
    """All values of a finite domain; UserError for a range of real numbers."""
    if isinstance(domain, Categorical):
        return list(domain.categories)
    if isinstance(domain, Integer):
        require_points(domain.upper - domain.lower)
        return list(range(domain.lower, domain.upper))
    raise UserError(f"a grid needs a list of values, but {name} is the range {domain_text(domain)}; use tune.choice")


def ends(name: str, domain: Domain) -> list[Any]:
    """What to validate of a domain: its categories, or its least and largest value."""
    if isinstance(domain, Categorical):
        if not domain.categories:
            raise UserError(f"{name} needs at least one value to choose from, but its choice is empty")
        return list(domain.categories)
    assert isinstance(domain, Integer | Float)
    low, high = domain.lower, domain.upper - 1 if isinstance(domain, Integer) else domain.upper
    if low > high:
        raise UserError(f"{name} needs low <= high, but its range is {low} … {high}")
    return [low, high]


def as_domain(name: str, value: Any) -> Domain:
    """A value of a space as a domain: a constant is a choice of one.  UserError for what Optuna cannot search."""
    if isinstance(value, Integer | Float | Categorical) and isinstance(_sampler(value), Uniform | LogUniform):
        return value
    if isinstance(value, Domain):
        raise UserError(
            f"{name} must be a range or a choice of Ray Tune's, uniform or log-uniform, but got "
            f"{type(value).__name__} {type(value.get_sampler()).__name__.strip('_')}"
        )
    return Categorical([value])  # a constant


def fitted(knob: Knob, domain: Domain) -> Domain:
    """The domain with values of its hyperparameter's type; UserError for one that holds others than declared.

    A range of real numbers would give a whole-numbered hyperparameter values that every trial fails on.
    """
    values = [knob.check(value) for value in ends(knob.name, domain)]
    if isinstance(domain, Categorical):
        same = len(values) == len(domain.categories) and all(map(_alike, values, domain.categories))
        return domain if same else Categorical(values).uniform()
    sampler = domain.get_sampler()
    step = sampler.q if isinstance(sampler, Quantized) else None
    if knob.choices or (knob.integer and isinstance(domain, Float) and (not step or step != int(step))):
        kind = f"one of {knob.range_text()}" if knob.choices else "whole numbers"
        use = "tune.choice" if knob.choices else "tune.randint or tune.lograndint"
        raise UserError(f"{knob.name} takes {kind}, but its range {domain_text(domain)} has others; use {use}")
    return domain


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def require_points(count: int) -> None:
    """UserError for a grid that is too large to be made."""
    if count > POINTS:
        raise UserError(f"a grid must have at most {POINTS:,} points, but all combinations of the space are {count:,}")


def also_text(name: str, domain: Domain) -> str:
    """What `--also` reads to add this domain to another space."""
    if isinstance(domain, Categorical):
        return name
    low, high = ends(name, domain)
    return f"{name}={low!r}..{high!r}"


def _sampler(domain: Domain) -> Any:
    """How values are drawn, before they are rounded."""
    sampler = domain.get_sampler()
    return sampler.sampler if isinstance(sampler, Quantized) else sampler
