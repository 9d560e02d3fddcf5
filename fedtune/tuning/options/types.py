"""What an option is: its field, how it is typed, and the values that it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any

from fedtune.core.errors import UserError, require_known, shown
from fedtune.core.hyper import Range, python_value

HEADINGS = WHAT, HOW, LENGTH, WHERE = ("what is trained", "how it is searched", "how long", "where it runs")
AUTO = "auto"  # --gpus-per-trial auto: the share is measured
MANY, FEW, LONG = 1_000_000, 1_000, 1_000_000_000  # most trials or rounds; most seeds; most seconds or megabytes


def number(kind: type[int] | type[float], low: float, high: float, rule: str = "") -> Callable[[Any], Any]:
    """A parser of numbers low..high, both included; its UserError has the rule, or these bounds."""
    integer = kind is int
    rule = rule or f"{'a whole number' if integer else 'a number'} in {Range(low, high, False, integer).text()}"

    def parse(value: Any) -> Any:
        try:
            parsed = kind(value)
            if isinstance(value, bool) or not (isinstance(value, str) or parsed == value) or not low <= parsed <= high:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"must be {rule}, but got {shown(value)}") from None
        return parsed

    return parse


positive_int = number(int, 1, MANY)
small_int = number(int, 1, FEW)  # of things that are created one by one before a search begins
above_zero = number(float, 1e-9, LONG, f"a number above 0, at most {LONG:,}")


def share(value: Any, also: str = "") -> float:
    """A fraction of a GPU, or so many whole ones; UserError otherwise.  also: another value that the rule names."""
    rule = f"a fraction below 1 or a whole number of at most {FEW:,}{also}"
    parsed: float = number(float, 0, FEW, rule)(value)
    return parsed if parsed < 1 else number(int, 1, FEW, rule)(parsed)


def gpus(value: Any) -> float | str:
    """A number of GPUs, or auto; UserError otherwise."""
    return AUTO if value == AUTO else share(value, f", or {AUTO}")


def texts(value: Any) -> tuple[str, ...]:
    """Strings without repetition, from one or several; UserError for anything else."""
    several = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(several, list | tuple) or not all(isinstance(v, str | os.PathLike) for v in several):
        raise UserError(f"must be a text, or several, but got {shown(value)}")
    return tuple(dict.fromkeys(map(os.fspath, several)))


def option(
    default: Any,
    help: str | Callable[[], str],
    metavar: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    choices: Sequence[str] = (),
    group: str = "",
    rare: bool = False,
) -> Any:
    """A dataclass field that is a command's option.

    help      the help text, or a function that returns it when a parser is built; --help shows it up to its first "; ".
    parse     its value from text or from Python; raises UserError with the rule that it breaks.
    group     its heading in --help: one of HEADINGS.
    rare      --help leaves it out; --help-all shows it.
    """
    about = {"help": help, "metavar": metavar, "parse": parse, "choices": choices, "group": group, "rare": rare}
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


def flag(name: str, default: Any = None) -> str:
    """An option as it is typed: --no-dashboard for what is on by itself."""
    return ("--no-" if default is True else "--") + name.replace("_", "-")


def check(given: Any) -> None:
    """Parse every value of a dataclass of options in place; UserError for one that breaks its option's rule."""
    for f in options(type(given)):
        value, about = python_value(getattr(given, f.name)), f.metadata
        if value is None and f.default is None:
            continue
        try:
            if value == "" != f.default:
                raise UserError("must not be empty; leave it out for the default")
            parsed = about["parse"](value) if about["parse"] else _plain(f.default, value)
            object.__setattr__(given, f.name, parsed)
            if about["choices"]:
                require_known("choice", parsed if isinstance(parsed, tuple) else (parsed,), about["choices"])
        except UserError as error:
            raise UserError(f"{flag(f.name)} {error}") from None


def _plain(default: Any, value: Any) -> Any:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(default, bool):
        fits, rule = isinstance(value, bool), "true or false"
    elif default is MISSING:
        fits, rule = is_mapping(value), "names and values"
    else:
        fits, rule = isinstance(value, str), "a text"
    if not fits:
        raise UserError(f"must be {rule}, but got {shown(value)}")
    return value


def is_mapping(value: Any) -> bool:
    """Whether it is names and values."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def options(cls: type) -> Iterator[Field[Any]]:
    """The fields of a class that are options by themselves: all but the scenario's fields."""
    return (f for f in fields(cls) if "help" in f.metadata)


def pair(text: str, where: str = "--set") -> tuple[str, str]:
    """NAME=VALUE as a name and a value; UserError otherwise."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"{where} needs NAME=VALUE, but got {shown(text)}; for instance --set lr=0.05")
    return name, value
