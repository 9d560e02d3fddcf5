"""Checks of what an algorithm declares: hyperparameters, the rounds in which they matter, presets and metrics."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from types import FunctionType
from typing import Any

from fedtune.conformance.check import Note, RunFailed, Violation, check
from fedtune.conformance.subject import CLOCK, Subject, WatchedRun, differences
from fedtune.conformance.watching import HOOKS
from fedtune.core.errors import Diverged, UserError
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.core.metrics import METRICS
from fedtune.experiment.algorithm import Algorithm, first_round
from fedtune.experiment.scenario import Scenario
from fedtune.user_code import sources


@check("declarations", "every field is a hyperparameter whose default lies in its range, and every method a hook")
def declarations(s: Subject) -> Violation | Note | None:
    """Everything that can be checked without running the algorithm."""
    found = next(chain(_fields(s.cls), _hooks(s.cls), _named_values(s.cls)), None)
    return Violation(*found) if found else None


def _fields(cls: type[Algorithm]) -> Iterator[tuple[str, str, str]]:  # noqa: C901
    """What is wrong with an algorithm's fields: place, what and advice."""
    declared, fields = hyperparameters(cls), {f.name for f in dataclasses.fields(cls)}
    for name in (n for n, value in vars(cls).items() if isinstance(value, dataclasses.Field)):
        what = f"{name} is not a field of {cls.__name__}"
        yield sources.of_class(cls), what, "write @dataclass(frozen=True) above the class"
    for name in fields - declared.keys():
        advice = f"declare it: {name}: … = hyper(default, low, high, help=…), or as ClassVar"
        yield sources.of_name(cls, name), f"{name} is a field, but not a hyperparameter", advice
    for name, hp in declared.items():
        place = sources.of_name(cls, name)
        if name in {f.name for f in dataclasses.fields(Scenario)}:
            yield place, f"{name} is also a field of scenarios", "give it another name"
        if hp.log and not (hp.low or 0) > 0:
            yield place, f"{name} has a log scale from {hp.low}", "give a lower end above 0"
        if hp.low is not None and not hp.low <= (math.inf if hp.high is None else hp.high):
            yield place, f"{name} has the range {hp.low} … {hp.high}", "give the lower end first"
        try:
            if type(value := hp.check(hp.default)) is not type(hp.default):
                yield place, f"the default of {name} is not of type {type(value).__name__}", f"write {value!r}"
        except UserError as error:
            yield place, str(error), "give a default in the range, or name it in extra_values"
    try:
        alg = cls()
    except UserError as error:
        yield sources.of_class(cls), f"the defaults are refused: {error}", "give defaults that are compatible"
        return
    for name, hp in declared.items():
        place, rule = sources.of_name(cls, name), hp.first_round
        if isinstance(rule, str) and not callable(getattr(alg, rule, None)):
            what = f"{name} declares first_round={rule!r}, but there is no such method"
            yield place, what, f"write a method {rule}(self) -> int"
        elif not (isinstance(first := first_round(alg, name), int) and first >= 1):
            yield place, f"the first round of {name} is {first!r}", "rounds count from 1"


def _hooks(cls: type[Algorithm]) -> Iterator[tuple[str, str, str]]:
    """Methods that the engine would call with other arguments, or whose name looks like a mistyped hook."""
    text = sources.source_of(cls)
    methods = [m for owner in sources.own_classes(cls) for m in vars(owner).items() if isinstance(m[1], FunctionType)]
    for name, method in methods:
        if name in HOOKS:
            expected, accepted = (
                ", ".join(inspect.signature(f).parameters) for f in (getattr(Algorithm, name), method)
            )
            try:
                inspect.signature(method).bind(*expected.split(", "))
            except TypeError:
                what = f"{name}({accepted}) is called with other arguments: {name}({expected})"
                yield sources.of_function(method), what, "give it these arguments"
        elif not name.startswith("__") and len(re.findall(rf"\b{name}\b", text)) == 1:
            for similar in difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.8):
                yield sources.of_function(method), f"{name} is never called", f"did you mean {similar}?"


def _named_values(cls: type[Algorithm]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with presets and other attributes that name hyperparameters."""
    declared, declarable = hyperparameters(cls), hyperparameters(Scenario) | hyperparameters(cls)
    for attribute in ("shared", "sends", "predicts", "schedule", "structural"):
        place, names = sources.of_name(cls, attribute), getattr(cls(), attribute)
        if not isinstance(names, tuple):
            yield place, f"{attribute} is not a tuple", f'write {attribute} = ("…",)'
        for name in {*names} - declared.keys() if attribute in ("schedule", "structural") else ():
            what = f"{attribute} names {name}, which is not a hyperparameter"
            yield place, what, f"name some of {', '.join(declared) or 'none'}"
    sets = {"for_mixed_models": cls.for_mixed_models, "checked_with": cls.checked_with, **cls.presets}
    for title, values in sets.items():
        place = sources.of_name(cls, title if title not in cls.presets else "presets")
        for name, value in values.items():
            try:
                if name not in declarable:
                    yield place, f"{title} names {name}, which is not a hyperparameter", "see fedtune list NAME"
                else:
                    declarable[name].check(value)
            except UserError as error:
                yield place, f"{title}: {error}", "give a value in the range"


@check(
    "first effects",
    "a hyperparameter has an effect, in the round that it declares or later",
    needs=("declarations", "seed", "finite"),
)
def first_effects(s: Subject) -> Violation | Note | None:
    """Two runs that differ in one hyperparameter: equal before its first round, different within three rounds after."""
    for name, hp in hyperparameters(s.cls).items():
        if hp.searchable and name not in s.values.keys() - s.cls.checked_with.keys():
            violation = first_effect(s, name, hp)
            if violation:
                return violation
    return None


def first_effect(s: Subject, name: str, hp: Hyperparameter) -> Violation | None:
    """The violation, if one hyperparameter takes effect too early or not at all."""
    case, place, own = s.cases.effects, sources.of_name(s.cls, name), hyperparameters(s.cls)
    values = {n: v for n, v in s.values.items() if n in own}
    for one, other, extra in _contrasts(s, name, hp):
        configs = [{**extra, name: v} for v in (one, other)]
        try:
            algorithms = [s.cls(**{**values, **{n: v for n, v in c.items() if n in own}}) for c in configs]
        except UserError:
            continue  # these values cannot be combined
        if any(name in alg.idle(case.scenario) for alg in algorithms):
            return None
        first = min(first_round(alg, name) for alg in algorithms)
        try:
            for rounds in range(first, first + 3):
                a, b = (s.run(case, rounds, config=c) for c in configs)
                if early := _early(a, b, first):
                    what = f"{name} has an effect in round {early}, but declares first_round={first}"
                    return Violation(place, what, f"declare first_round={early}")
                if _differ(a, b, rounds, first):
                    return None
        except RunFailed as stopped:
            if isinstance(stopped.error, Diverged):
                return None  # diverging is a strong effect
            raise
    to_do = "use it, or give in `contrasts` two values that differ, and the other values that they need"
    return Violation(place, f"{name} changes nothing within three rounds", to_do)


def _early(a: WatchedRun, b: WatchedRun, first: int) -> int:
    """The first round before `first` in which the two runs have different scores; 0 if there is none."""
    scores = [[{k: v for k, v in row.items() if "val" in k or "test" in k} for row in r.rows] for r in (a, b)]
    return next((t for t in range(1, first) if scores[0][t - 1] != scores[1][t - 1]), 0)


def _differ(a: WatchedRun, b: WatchedRun, t: int, first: int) -> bool:
    """Whether models differ after round t; if it may act from round 1, scores and reported metrics count too."""
    one, other = a.states[t], b.states[t]
    models = [n for n in one if n.startswith(("client ", "server/shared"))]
    return bool(differences({n: one[n] for n in models}, {n: other[n] for n in models if n in other})) or (
        first == 1 and a.rows[:t] != b.rows[:t]
    )


def _contrasts(s: Subject, name: str, hp: Hyperparameter) -> Iterator[tuple[Any, Any, Mapping[str, Any]]]:
    """Pairs of values whose runs should differ, and other values they need: as declared, or the likeliest first."""
    if name in s.cls.contrasts:
        yield s.cls.contrasts[name]
        return
    value = getattr(s.cls(**{n: v for n, v in s.values.items() if n in hyperparameters(s.cls)}), name)
    if hp.choices:
        yield from ((value, c, {}) for c in hp.choices if c != value)
        return
    low, high = hp.low or 0.0, hp.high or 0.0
    ends = [high, low] if value is None or value < (low * high) ** 0.5 else [low, high]
    yield from ((value, hp.check(v), {}) for v in ends if v != value)


@check(
    "metrics", "every round's row has the promised metrics, and `report` returns numbers", needs=("finite", "messages")
)
def metrics(s: Subject) -> Violation | Note | None:
    """The rows of three rounds."""
    promised = {name for name, declared in METRICS.items() if not (declared.search_only or declared.needs)} - set(CLOCK)
    place = sources.of_hook(s.cls, "report")
    for case in (s.cases.few, s.cases.averaged):
        optional = set() if case.scenario.all_classes else {"test_acc_all", "test_acc_foreign"}
        for row in s.run(case, executor="loop").rows:
            if missing := sorted(promised - optional - row.keys()):
                what = f"round {row['round']} lacks the metric {missing[0]}"
                return Violation("", what, "give every round a Phase of training")
            for name, value in row.items():
                number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
                if not number and value is not None:
                    what = f"`report` returns {name} = {value!r}"
                    return Violation(place, what, "return finite numbers (float, int)")
    return None
