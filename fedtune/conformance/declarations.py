"""Checks of what an algorithm declares: hyperparameters, the rounds in which they matter, presets and metrics."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
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
    for violation in (*_fields(s.cls), *_hooks(s.cls), *_named_values(s.cls)):
        return violation
    return None


def _fields(cls: type[Algorithm]) -> Iterator[Violation]:  # noqa: C901, PLR0912
    declared = hyperparameters(cls)
    for name, value in vars(cls).items():
        if isinstance(value, dataclasses.Field):
            yield Violation(
                sources.of_class(cls),
                f"{name} is not a field of {cls.__name__}",
                "write @dataclass(frozen=True) above the class",
            )
    for name in (f.name for f in dataclasses.fields(cls) if f.name not in declared):
        yield Violation(
            sources.of_name(cls, name),
            f"{name} is a field, but not a hyperparameter",
            f"declare it: {name}: … = hyper(default, low, high, help=…), or as ClassVar",
        )
    for name, hp in declared.items():
        place = sources.of_name(cls, name)
        if name in {f.name for f in dataclasses.fields(Scenario)}:
            yield Violation(place, f"{name} is also a field of scenarios", "give it another name")
        if hp.log and not (hp.low or 0) > 0:
            yield Violation(place, f"{name} has a log scale from {hp.low}", "give a lower end above 0")
        if hp.low is not None and not hp.low <= (math.inf if hp.high is None else hp.high):
            yield Violation(place, f"{name} has the range {hp.low} … {hp.high}", "give the lower end first")
        try:
            if type(hp.check(hp.default)) is not type(hp.default):
                yield Violation(
                    place,
                    f"the default of {name} is not of type {type(hp.check(hp.default)).__name__}",
                    f"write {hp.check(hp.default)!r}",
                )
        except UserError as error:
            yield Violation(place, str(error), "give a default in the range, or name it in extra_values")
    try:
        alg = cls()
    except UserError as error:
        yield Violation(
            sources.of_class(cls), f"the defaults are refused: {error}", "give defaults that are compatible"
        )
        return
    for name, hp in declared.items():
        if isinstance(hp.first_round, str) and not callable(getattr(alg, hp.first_round, None)):
            yield Violation(
                sources.of_name(cls, name),
                f"{name} declares first_round={hp.first_round!r}, but there is no such method",
                f"write a method {hp.first_round}(self) -> int",
            )
        elif not (isinstance(first := first_round(alg, name), int) and first >= 1):
            yield Violation(
                sources.of_name(cls, name),
                f"the first round of {name} is {first!r}",
                "rounds count from 1",
            )


def _hooks(cls: type[Algorithm]) -> Iterator[Violation]:
    """Methods that the engine would call with other arguments, or whose name looks like a mistyped hook."""
    text = sources.source_of(cls)
    for owner in sources.own_classes(cls):
        for name, method in vars(owner).items():
            if not isinstance(method, FunctionType) or name.startswith("__"):
                continue
            if name in HOOKS:
                expected, accepted = (list(inspect.signature(f).parameters) for f in (getattr(Algorithm, name), method))
                try:
                    inspect.signature(method).bind(*expected)
                except TypeError:
                    yield Violation(
                        sources.of_function(method),
                        f"{name}({', '.join(accepted)}) is called with other arguments: {name}({', '.join(expected)})",
                        "give it these arguments",
                    )
            elif len(re.findall(rf"\b{name}\b", text)) == 1 and (
                similar := difflib.get_close_matches(name, HOOKS, n=1, cutoff=0.8)
            ):
                yield Violation(sources.of_function(method), f"{name} is never called", f"did you mean {similar[0]}?")


def _named_values(cls: type[Algorithm]) -> Iterator[Violation]:
    """Presets and other attributes that name hyperparameters."""
    declared, declarable = hyperparameters(cls), hyperparameters(Scenario) | hyperparameters(cls)
    for attribute in ("schedule", "structural"):
        for name in getattr(cls, attribute):
            if name not in declared:
                yield Violation(
                    sources.of_name(cls, attribute),
                    f"{attribute} names {name}, which is not a hyperparameter",
                    f"name some of {', '.join(declared) or 'none'}",
                )
    for attribute in ("shared", "sends", "predicts", "schedule", "structural"):
        if not isinstance(getattr(cls(), attribute), tuple):
            yield Violation(
                sources.of_name(cls, attribute), f"{attribute} is not a tuple", f'write {attribute} = ("…",)'
            )
    sets: dict[str, Mapping[str, Any]] = {
        "for_mixed_models": cls.for_mixed_models,
        "checked_with": cls.checked_with,
        **dict(cls.presets),
    }
    for title, values in sets.items():
        place = sources.of_name(cls, title if title not in cls.presets else "presets")
        for name, value in values.items():
            if name not in declarable:
                yield Violation(place, f"{title} names {name}, which is not a hyperparameter", "see fedtune list NAME")
                continue
            try:
                declarable[name].check(value)
            except UserError as error:
                yield Violation(place, f"{title}: {error}", "give a value in the range")


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
    case, place = s.cases.effects, sources.of_name(s.cls, name)
    own = hyperparameters(s.cls)
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
                    return Violation(
                        place,
                        f"{name} has an effect in round {early}, but declares first_round={first}",
                        f"declare first_round={early}",
                    )
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
    "metrics",
    "every round's row has the promised metrics, and `report` returns numbers",
    needs=("finite", "messages"),
)
def metrics(s: Subject) -> Violation | Note | None:
    """The rows of three rounds."""
    promised = {name for name, declared in METRICS.items() if not declared.search_only} - set(CLOCK)
    for case in (s.cases.few, s.cases.averaged):
        for row in s.run(case, executor="loop").rows:
            place = sources.of_hook(s.cls, "report")
            everywhere = {"test_acc_all", "test_acc_foreign"}
            optional = everywhere if not case.scenario.all_classes else set()
            if missing := sorted(promised - optional - row.keys()):
                return Violation(
                    "", f"round {row['round']} lacks the metric {missing[0]}", "give every round a Phase of training"
                )
            for name, value in row.items():
                number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
                if not number and value is not None:
                    return Violation(
                        place, f"`report` returns {name} = {value!r}", "return finite numbers (float, int)"
                    )
            if not (0 <= row["val_acc"] <= 1 and 0 <= row["test_acc_worst10"] <= row["test_acc"] <= 1):
                return Violation(
                    place, f"round {row['round']} has accuracies outside 0 … 1", "do not overwrite them in `report`"
                )
    return None
