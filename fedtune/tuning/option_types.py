"""What an option is: its field, how it is typed, and the values that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from typing import Any

from fedtune.core.errors import UserError, unknown

AUTO = "auto"  # --gpus-per-trial: measured


def positive(value: Any) -> int:
    """A whole number of at least 1; UserError otherwise."""
    return _number(value, int, "a whole number of at least 1", lambda n: n >= 1)


def above_zero(value: Any) -> float:
    """A number above 0; UserError otherwise."""
    return _number(value, float, "a number above 0", lambda n: 0 < n < math.inf)


def whole(value: Any) -> int:
    """A whole number; UserError otherwise."""
    return _number(value, int, "a whole number")


def real(value: Any) -> float:
    """A number; UserError otherwise."""
    return _number(value, float, "a number")


def gpus(value: Any) -> float | str:
    """A number, or auto; UserError otherwise."""
    return AUTO if value == AUTO else _number(value, float, f"a number, or {AUTO}")


def texts(value: Any) -> tuple[str, ...]:
    """Texts, each once, from one or several."""
    return tuple(dict.fromkeys([value] if isinstance(value, str) else map(str, value)))


def names_of(*known: str) -> Callable[[Any], tuple[str, ...]]:
    """A parser of names, each once, from one name or several; its UserError names those that there are."""

    def names(value: Any) -> tuple[str, ...]:
        given = [value] if isinstance(value, str) else value
        for name in given:
            if name not in known:
                raise UserError(f"must be {' or '.join(known)}, but got {name!r}")
        return tuple(dict.fromkeys(given))

    return names


def _number(value: Any, kind: type, rule: str, holds: Callable[[Any], bool] = lambda n: True) -> Any:
    try:
        number = kind(value)
        if isinstance(value, bool) or not (isinstance(value, str) or number == value or value != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"must be {rule}, but got {value!r}") from None
    if not holds(number):
        raise UserError(f"must be {rule}, but got {value!r}")
    return number


def option(
    default: Any, help: str | Callable[[], str], metavar: str | None = None, parse: Callable[[Any], Any] | None = None,
    choices: Sequence[str] = (), group: str = "",
) -> Any:  # fmt: skip
    """A dataclass field that is an option.

    help      what it does, or what says so when a parser is built.
    parse     its value from text or from Python; raises UserError with the rule that it breaks.
    group     the heading in --help under which it stands.
    """
    about = {"help": help, "metavar": metavar, "parse": parse, "choices": choices, "group": group}
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


def flag(name: str, default: Any = None) -> str:
    """An option as it is typed: --no-dashboard for what is on by itself."""
    return ("--no-" if default is True else "--") + name.replace("_", "-")


def check(given: Any) -> None:
    """Parse every value of a dataclass of options in place; UserError for one that breaks its option's rule."""
    for f in options(type(given)):
        value, about = getattr(given, f.name), f.metadata
        if value is None and f.default is None:
            continue
        try:
            if about["parse"]:
                object.__setattr__(given, f.name, about["parse"](value))
            elif about["choices"] and value not in about["choices"]:
                raise unknown("choice", str(value), about["choices"])
        except UserError as error:
            raise UserError(f"{flag(f.name)} {error}") from None


def options(cls: type) -> Iterator[Field[Any]]:
    """The fields of a class that are options by themselves: all but the scenario's fields."""
    return (f for f in fields(cls) if "help" in f.metadata)


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE as a name and a value; UserError otherwise."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"--set needs NAME=VALUE, but got {text!r}; for instance --set lr=0.05")
    return name, value


def pairs(
    words: Sequence[str], own: Mapping[str, Field[Any]], known: Collection[str]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """The arguments of a command line and their values, abbreviated as argparse allows."""
    rest = iter(words)
    for word in rest:
        typed, equals, value = word.partition("=")
        fits = [typed] if typed in known else [name for name in known if name.startswith(typed)]
        if not typed.startswith("--") or len(fits) != 1:
            raise UserError(f"the recorded command line holds {word!r}, which is no option of a search")
        switch = fits[0] in own and isinstance(own[fits[0]].default, bool)
        given = value if switch or equals else next(rest, None)
        if given is None:
            raise UserError(f"the recorded command line ends with {word!r}, which needs a value")
        yield fits[0], given
