"""Search spaces in words.

lr = "0.001..0.3 log", epochs = "1..50", optimizer = ["sgd", "adam"], momentum = {range = "0..0.95", when = {…}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import Hyperparameter
from fedtune.programs.entries import LARGEST, Entry

NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER}?)\s*\.\.\s*({NUMBER})(\s+log)?\s*")
EXAMPLES = '"0.001..0.3 log", "1..50" (whole numbers) or ["a", "b"]'
Conditions = dict[str, dict[str, tuple[Any, ...]]]


def hp(name: str, entry: Entry, default: Entry | None) -> tuple[Hyperparameter, str]:
    """A searched hyperparameter with its default, and a note if the default was not given."""
    value = entry.value
    if isinstance(value, Mapping):
        parts = entry.table(("range", "choices", "when"))
        given = [parts[key] for key in ("range", "choices") if key in parts]
        if len(given) != 1:
            raise entry.refuse(
                "a table with range or choices", 'for example {range = "0..0.95", when = {optimizer = "sgd"}}'
            )
        entry, value = given[0], given[0].value
    made = _choices(name, entry) if isinstance(value, list) else _range(name, entry)
    if default is None:
        return made, f"{name} has no default; {made.default!r} is taken, {_which(made)}"
    return replace(made, default=_checked(made, default)), ""


def fixed(name: str, entry: Entry) -> Hyperparameter:
    """A hyperparameter that is not searched: a value of [defaults] that the command names."""
    value = entry.value
    if isinstance(value, bool):
        return _knob(name, value, choices=(False, True))
    if isinstance(value, str):
        return _knob(name, value, choices=(value,))
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise entry.refuse("a number, text, true or false")
    return _knob(name, value)


def conditions(space: Mapping[str, Entry], hps: Mapping[str, Hyperparameter]) -> Conditions:
    """What each hyperparameter needs of others, of those that need something; UserError for a circle."""
    found: Conditions = {}
    for name, entry in space.items():
        if not isinstance(entry.value, Mapping) or "when" not in entry.value:
            continue
        asked = entry.child("when")
        found[name] = {other: _values(other, e, name, hps) for other, e in asked.table().items()}
        if not found[name]:
            raise asked.refuse("a table of other hyperparameters", 'for example {optimizer = "sgd"}')
    for name in found:
        _require_no_circle(name, found, space[name])
    return found


def _values(other: str, entry: Entry, name: str, hps: Mapping[str, Hyperparameter]) -> tuple[Any, ...]:
    if other not in hps or other == name:
        raise entry.source.error(entry.key, unknown("hyperparameter", other, [n for n in hps if n != name]))
    asked = entry.value if isinstance(entry.value, list) else [entry.value]
    if not asked:
        raise entry.refuse("a value or a list of values")
    return tuple(_checked(hps[other], entry._replace(value=value)) for value in asked)


def _require_no_circle(name: str, found: Conditions, entry: Entry) -> None:
    above, todo = set(), [name]
    while todo:
        for other in found.get(todo.pop(), {}):
            if other == name:
                raise entry.source.error(
                    entry.key, f"a condition must not depend on itself, but that of {name} does; leave a `when` out"
                )
            if other not in above:
                above.add(other)
                todo.append(other)


def _checked(hp: Hyperparameter, entry: Entry) -> Any:
    """A value that this hyperparameter may have, in its type."""
    if isinstance(entry.value, str) and not isinstance(hp.default, str):
        raise entry.refuse(f"a value of {hp.name}, which is {hp.range_text()}", "write it without quotes")
    try:
        return hp.check(entry.value)
    except UserError as error:
        raise entry.source.error(entry.key, error) from None


def _range(name: str, entry: Entry) -> Hyperparameter:
    found = RANGE.fullmatch(entry.value) if isinstance(entry.value, str) else None
    if not found or not found[1]:
        raise entry.refuse("a range or a list of choices", f"for example {EXAMPLES}")
    ends = found[1], found[2]
    whole = all(re.fullmatch(r"[+-]?\d+", end) for end in ends)
    low, high = (int(end) if whole else float(end) for end in ends)
    if not low < high or max(abs(low), abs(high)) > (LARGEST if whole else 1e300):
        raise entry.refuse("a range LOW..HIGH with LOW < HIGH")
    if found[3] and low <= 0:
        raise entry.refuse("above 0 at both ends on a log scale", "leave out `log`, or start the range above 0")
    middle = math.sqrt(low * high) if found[3] else (low + high) / 2
    default = round(middle) if whole else min(max(float(f"{middle:.3g}"), low), high)
    return _knob(name, default, low=low, high=high, log=bool(found[3]))


def _choices(name: str, entry: Entry) -> Hyperparameter:
    values = entry.value
    kinds = {str if isinstance(v, str) else bool if isinstance(v, bool) else float for v in values}
    plain = all(isinstance(v, str | bool | int | float) and abs(_size(v)) <= 1e300 for v in values)
    if not plain or not values:
        raise entry.refuse("a list of texts, numbers, or true and false")
    if len(kinds) > 1:
        raise entry.refuse("a list of values of one kind", "write them all as text, or all as numbers")
    if len(set(values)) < len(values):
        raise entry.refuse("a list of different values")
    if len(values) == 1:
        raise entry.refuse("a list of two values or more", f"to fix {name}, move it to [defaults]")
    return _knob(name, values[0], choices=tuple(values))


def _size(value: Any) -> float:
    return 0.0 if isinstance(value, str) else value


def _which(hp: Hyperparameter) -> str:
    return "the first of its choices" if hp.choices else "the middle of its range"


def _knob(name: str, default: Any, **more: Any) -> Hyperparameter:
    declared = {"low": None, "high": None, "log": False, "choices": ()} | more
    return Hyperparameter(
        name=name, default=default, extra_values=(), symbol="", help="", first_round=1, late=False, **declared
    )
