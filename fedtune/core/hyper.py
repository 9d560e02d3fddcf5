"""Hyperparameters, each declared once: default, range, scale, paper symbol, help, and the first round it matters in.

    lam: float = hyper(1.0, 0.1, 10.0, log=True, symbol="λ", first_round=2, help="weight of the pull")

It validates values, makes Ray Tune's search domain, fills `fedtune list` and sets the first rung of early stopping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtune.core.errors import UserError, shown, unknown

if TYPE_CHECKING:  # Ray takes seconds to import, and only a search needs it
    from ray.tune.search.sample import Domain

SCALARS = (bool, int, float, str, type(None))  # types of hyperparameter values: those that records and tables can hold
NOTHING = ("None", "nan", "<NA>", "NaT")  # what a table shows for a hyperparameter that a trial did not have
_DECLARED = "__hyperparameters__"  # where a class keeps them
NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})(\s+log)?\s*")  # a range as it is written
WHOLE = re.compile(r"[+-]?\d+")
RECORDED, LISTS = ("default", "low", "high", "log", "symbol", "help"), ("choices", "extra_values")  # in a record


class Range(NamedTuple):
    """All numbers, or all whole numbers, from low to high, both included.  It is written `0.001..0.3 log`, or `1..50`.

    >>> from fedtune.core.hyper import Range
    >>> Range.parse("0.001..0.3 log")
    Range(low=0.001, high=0.3, log=True, integer=False)
    >>> Range(0, 1, log=False, integer=False).text()
    '0.0..1.0'
    """

    low: float
    high: float
    log: bool  # searched on a log scale
    integer: bool

    @classmethod
    def parse(cls, text: str) -> Range | None:
        """The range that is written so, of whole numbers if both ends are; None if it is not a range."""
        if not (found := RANGE.fullmatch(text)):
            return None
        integer = all(WHOLE.fullmatch(end) for end in found.groups()[:2])
        kind = int if integer else float
        return cls(kind(found[1]), kind(found[2]), bool(found[3]), integer)

    def text(self) -> str:
        """How it is written; `parse` gives it back exactly."""
        ends = [repr(int(end) if self.integer else float(end)) for end in (self.low, self.high)]
        short = [end.removesuffix(".0") for end in ends]
        low, high = short if self.integer or not all(map(WHOLE.fullmatch, short)) else ends
        return f"{low}..{high}{' log' if self.log else ''}"

    def domain(self) -> Domain:
        """Ray Tune's search domain over it."""
        from ray import tune

        if self.integer:
            return (tune.lograndint if self.log else tune.randint)(int(self.low), int(self.high) + 1)
        return (tune.loguniform if self.log else tune.uniform)(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Hyperparameter:
    """A hyperparameter's declaration; made by `hyper`."""

    name: str
    default: Any
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()
    extra_values: tuple[Any, ...] = ()  # allowed outside the range: 0 switches a term off
    symbol: str = ""
    help: str = ""
    first_round: int | str = 1  # the first one it matters in, from 1 on, or the algorithm's method that returns it
    late: bool = False  # it matters only in late rounds, if at all

    @property
    def integer(self) -> bool:
        """Whether values are whole numbers (a bool is a choice, not a number)."""
        return isinstance(self.default, int) and not isinstance(self.default, bool)

    @property
    def searchable(self) -> bool:
        """Whether it has a range or choices, so that a search space may contain it."""
        return bool(self.choices) or self.low is not None

    def range_text(self) -> str:
        """The range in words: `0.1..10 log`, `a | b`, and single values that are also allowed."""
        if self.choices:
            return " | ".join(str(c) for c in self.choices)
        if self.low is None or self.high is None:
            return "any"
        extra = "".join(f", or {a}" for a in self.extra_values)
        return f"{Range(self.low, self.high, self.log, self.integer).text()}{extra}"

    def check(self, value: Any) -> Any:
        """The value in its declared type; UserError if it is outside the declared ones.

        Strings are parsed first; scalars of NumPy, pandas and PyTorch are converted too.
        """
        value = python_value(value)
        if isinstance(value, str) and not isinstance(self.default, str):
            value = plain_value(value)
        if self.choices:
            for choice in self.choices if isinstance(value, SCALARS) else ():
                if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                    return choice
            raise self._refuse(value)
        if value is None and None in (self.default, *self.extra_values):
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if not number or (self.integer and value != int(value)):
            raise self._refuse(value)
        if value in self.extra_values:
            return int(value) if self.integer else float(value)
        if self.low is not None and self.high is not None and not self.low <= value <= self.high:
            raise self._refuse(value)
        return int(value) if self.integer else float(value)

    def domain(self, low: float | None = None, high: float | None = None) -> Domain:
        """Ray Tune's search domain over the declared range, or over a narrower one."""
        from ray import tune

        if self.choices:
            return tune.choice(list(self.choices))
        if not self.searchable:
            raise UserError(f"{self.name} has no range to search; fix it with --set {self.name}=VALUE")
        return self.within(self.low if low is None else low, self.high if high is None else high, self.log).domain()

    def within(self, low: Any, high: Any, log: bool) -> Range:
        """The range from low to high; UserError unless all of it is declared."""
        a, b = self.check(low), self.check(high)
        if not (self.low or 0) <= a < b:
            raise UserError(f"{self.name} needs a range low < high within {self.range_text()}, but got {a}..{b}")
        if log and a <= 0:
            raise UserError(f"{self.name} needs a range above 0 for a log scale, but got {a}..{b} log")
        return Range(a, b, log, self.integer)

    def to_record(self) -> dict[str, Any]:
        """What a reader of a run needs of it."""
        lists = {name: list(values) for name in LISTS if (values := getattr(self, name))}
        return {name: getattr(self, name) for name in RECORDED} | lists

    @classmethod
    def from_record(cls, name: str, fields: Mapping[str, Any]) -> Hyperparameter:
        """The declaration in a record."""
        values: dict[str, Any] = {n: fields[n] for n in RECORDED if n in fields}
        values |= {n: tuple(fields.get(n) or ()) for n in LISTS}
        return cls(name=name, **values)

    def _refuse(self, value: Any) -> UserError:
        kind = "one of" if self.choices else "a whole number in" if self.integer else "a number in"
        advice = "; leave it out for the default" if shown(value) in NOTHING else ""
        return UserError(f"{self.name} must be {kind} {self.range_text()}, but got {shown(value)}{advice}")


def hyper(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    log: bool = False,
    choices: tuple[Any, ...] = (),
    extra_values: tuple[Any, ...] = (),
    symbol: str = "",
    help: str = "",
    first_round: int | str = 1,
    late: bool = False,
) -> Any:
    """A dataclass field that is a hyperparameter.

    default        the paper's value.
    low, high      the range, both ends included; None: not searchable.
    log            searched on a log scale.
    choices        the values of a categorical hyperparameter.
    extra_values   single values allowed outside the range (for example 0, to switch a term off).
    first_round    the first round (1-based) whose evaluation can depend on it, or the algorithm's method that
                   returns it; an early-stopping search puts no rung before it.
    late           in most of the space it matters only in late rounds, if at all: rungs do not wait for it.

    >>> from dataclasses import dataclass
    >>> from fedtune import Algorithm, hyper
    >>> @dataclass(frozen=True)
    ... class Mine(Algorithm):
    ...     mu: float = hyper(0.01, 1e-4, 1.0, log=True, symbol="μ", help="weight of the pull")
    >>> Mine(mu=0.5).mu
    0.5
    >>> Mine(mu=7)
    Traceback (most recent call last):
    fedtune.core.errors.UserError: mu must be a number in 0.0001..1 log, but got 7
    """
    if isinstance(default, bool):
        choices = (False, True)
    default, low, high = map(python_value, (default, low, high))
    choices, extra_values = tuple(map(python_value, choices)), tuple(map(python_value, extra_values))
    if strange := [c for c in choices if not isinstance(c, SCALARS)]:
        raise UserError(f"a hyperparameter's choices must be strings, numbers or bools, but got {shown(strange[0])}")
    hp = Hyperparameter(
        name="",
        default=default,
        low=low,
        high=high,
        log=log,
        choices=choices,
        extra_values=extra_values,
        symbol=symbol,
        help=help,
        first_round=first_round,
        late=late,
    )
    return field(default=default, metadata={"hp": hp})


def hyperparameters(cls: type) -> dict[str, Hyperparameter]:
    """The hyperparameters that a dataclass declares, by name, in declaration order."""
    if _DECLARED not in vars(cls):  # kept by the class itself: a user's is another one in each trial
        declared = {f.name: f.metadata["hp"] for f in fields(cls) if "hp" in f.metadata}
        setattr(cls, _DECLARED, {name: replace(hp, name=name) for name, hp in declared.items()})
    return dict(vars(cls)[_DECLARED])


def check_all(owner: Any) -> None:
    """Validate and normalise every hyperparameter of a frozen dataclass instance in place (for __post_init__)."""
    for name, hp in hyperparameters(type(owner)).items():
        object.__setattr__(owner, name, hp.check(getattr(owner, name)))


def typed(declared: Mapping[str, Hyperparameter], config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with its values in their declared types; unknown names are left unchanged."""
    try:
        values = dict(config)
    except (TypeError, ValueError):
        raise UserError(f"a configuration must be names and values, but got {shown(config)}") from None
    return {name: declared[name].check(value) if name in declared else value for name, value in values.items()}


def find(name: str, *owners: type) -> Hyperparameter:
    """The hyperparameter of this name in the first owner that has it; otherwise UserError with the nearest name."""
    declared = {n: k for owner in reversed(owners) for n, k in hyperparameters(owner).items()}
    if name not in declared:
        raise unknown("hyperparameter", name, declared)
    return declared[name]


def python_value(value: Any) -> Any:
    """A scalar of NumPy, pandas or PyTorch as a Python value; anything else unchanged."""
    if getattr(value, "ndim", None) != 0 or getattr(getattr(value, "dtype", None), "kind", "f") not in "biufU":
        return value  # not dates: they hold a number, but are not meant as one
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):  # for example a meta tensor, which has no values
        return value


def plain_value(text: str) -> Any:
    """A value from text: a number, true, false, none, or the text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
