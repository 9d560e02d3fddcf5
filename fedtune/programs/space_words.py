"""Search spaces in words.

lr = "0.001..0.3 log", epochs = "1..50", optimizer = ["sgd", "adam"], momentum = {range = "0..0.95", when = {…}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Strict, with_config

from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Hyperparameter, Range
from fedtune.programs import command, metric
from fedtune.programs.entries import LARGEST, at, of_key, refused

EXAMPLES = '"0.001..0.3 log", "1..50" (whole numbers) or ["a", "b"]'
KEYS = ("range", "choices", "when")
Conditions = dict[str, dict[str, tuple[Any, ...]]]


def _name(name: str) -> str:
    if not re.fullmatch(command.NAME, name) or name in command.OWN or name in metric.TAKEN:
        rule = "be a letter, then letters, digits, _ . and -, and none that fedtune gives itself"
        raise UserError(f"a hyperparameter's name must {rule}, but got {name!r}; for example lr")
    return name


def _either(value: Any) -> Any:
    if isinstance(value, str | list):
        return {"range" if isinstance(value, str) else "choices": value}
    if not isinstance(value, dict):
        raise refused(value, "a range or a list of choices", f"for example {EXAMPLES}")
    if len(value.keys() & {"range", "choices"}) != 1 and value.keys() <= set(KEYS):
        example = 'for example {range = "0..0.95", when = {optimizer = "sgd"}}'
        raise refused(value, "a table with range or choices", example)
    return value


def _range(text: str) -> str:
    if not (found := Range.parse(text)):
        raise refused(text, "a range or a list of choices", f"for example {EXAMPLES}")
    if not found.low < found.high or max(abs(found.low), abs(found.high)) > (LARGEST if found.integer else 1e300):
        raise refused(text, "a range LOW..HIGH with LOW < HIGH")
    if found.log and found.low <= 0:
        raise refused(text, "above 0 at both ends on a log scale", "leave out `log`, or start the range above 0")
    return text


def _choices(values: list[Any]) -> list[Any]:
    kinds = {bool if isinstance(v, bool) else str if isinstance(v, str) else _is_number(v) and float for v in values}
    if len(kinds) != 1 or False in kinds or len(set(values)) < max(2, len(values)):
        rule = "a list of two or more texts, or numbers, or true and false, each once"
        raise refused(values, rule, "a value that is fixed goes to [defaults]")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= 1e300


def _scalar(value: Any) -> Any:
    if not isinstance(value, str) and not _is_number(value):
        raise refused(value, "a number, text, true or false")
    return value


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True)
class Searched:
    """What an entry of [space] says."""

    range: Annotated[str, Strict(), AfterValidator(_range)] = ""
    choices: Annotated[list[Any], Strict(), AfterValidator(_choices)] = field(default_factory=list)
    when: dict[str, Any] = field(default_factory=dict)

    def declared(self, name: str) -> Hyperparameter:
        """The hyperparameter; its default is the first choice, or the middle of the range."""
        if self.choices:
            return Hyperparameter(name=name, default=self.choices[0], choices=tuple(self.choices))
        found = Range.parse(self.range)
        assert found
        low, high, log, integer = found
        middle = math.sqrt(low * high) if log else (low + high) / 2
        default = round(middle) if integer else min(max(float(f"{middle:.3g}"), low), high)
        return Hyperparameter(name=name, default=default, low=low, high=high, log=log)


Name = Annotated[str, AfterValidator(_name)]
Space = dict[Name, Annotated[Searched, BeforeValidator(_either)]]
Defaults = dict[Name, Annotated[Any, AfterValidator(_scalar)]]


def hyperparameters(
    space: Mapping[str, Searched], defaults: Mapping[str, Any]
) -> tuple[dict[str, Hyperparameter], list[str]]:
    """Those that are searched, then those that are fixed, and a note for each default that was not given."""
    found, notes = {}, list[str]()
    for name, searched in space.items():
        found[name] = made = searched.declared(name)
        if name in defaults:
            found[name] = replace(made, default=_value(made, defaults[name], f"defaults.{name}"))
        else:
            which = "the first of its choices" if made.choices else "the middle of its range"
            notes.append(f"{name} has no default; {made.default!r} is taken, {which}")
    for name, value in defaults.items():
        if name not in space:
            choices = (False, True) if isinstance(value, bool) else (value,) if isinstance(value, str) else ()
            found[name] = Hyperparameter(name=name, default=value, choices=choices)
    return found, notes


def conditions(space: Mapping[str, Searched], hps: Mapping[str, Hyperparameter]) -> Conditions:
    """What each hyperparameter needs of others, of those that need something."""
    found: Conditions = {}
    for name, searched in space.items():
        for other, asked in searched.when.items():
            key = f"space.{name}.when.{other}"
            if other not in hps or other == name:
                raise of_key(key, unknown("hyperparameter", other, [n for n in hps if n != name]))
            if not (values := asked if isinstance(asked, list) else [asked]):
                raise of_key(key, refused(asked, "a value or a list of values"))
            found.setdefault(name, {})[other] = tuple(_value(hps[other], value, key) for value in values)
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        name = min(error.args[1])
        raise UserError(f"a condition must not depend on itself, but that of {name} does; leave a `when` out") from None
    return found


def _value(hp: Hyperparameter, value: Any, key: str) -> Any:
    if isinstance(value, str) and not isinstance(hp.default, str):
        raise of_key(key, refused(value, f"in {hp.range_text()}", "write it without quotes"))
    with at(key):
        return hp.check(value)
