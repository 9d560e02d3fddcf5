"""`fedtune check`: the laws of fedtune/conformance, asked of an algorithm or of a model, told a line each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from fedtune.conformance import algorithms, models
from fedtune.conformance.law import Verdict, judge
from fedtune.conformance.models import ModelSubject
from fedtune.conformance.settings import TINY
from fedtune.conformance.subject import Subject
from fedtune.core.errors import UserError
from fedtune.core.threads import one_thread
from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue
from fedtune.tuning import space_laws
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import user_files

WORDS = {"holds": "holds ", "broken": "BROKEN", "unknown": "-     "}


class Check:
    """The laws of an algorithm or of a model, and whether each holds.

    Check("scaffold.py"), Check("net.py:transformer"), Check("gfpl", model="net.py:transformer(depth=2)")
    """

    def __init__(
        self, what: str = "", scenario: str = "", model: str = "", set: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        """UserError for what is no algorithm or model, or does not load.

        what       an algorithm or a model: a name, or FILE.py:NAME
        scenario   whose data shape, model and local work it is asked with (default: small clients of many kinds)
        model      a model, asked by itself and then, with an algorithm, as its clients' model
        set        hyperparameters that are held fixed; the scenario's fields are given by their names
        """
        what, model = _algorithm_and_model(what, model)
        self.algorithm, self.model = what, model
        fields = {**fields, **({"model": model} if model else {})}
        self.base = _scenario(scenario, fields) if scenario or fields else None
        self._cls = registry.find(what) if what else None
        self._subject = Subject(self._cls, what, self.base, set) if self._cls else None

    def judge(self) -> Iterator[Verdict]:
        """Each law as soon as it is known: the model's, then the algorithm's."""
        stacks = True
        if self.model:
            assert self.base
            subject = ModelSubject(self.model, self.base)
            broken = False
            for verdict in judge(models.LAWS, subject):
                broken |= verdict.status == "broken" and verdict.law.name == "fits"
                yield verdict
            stacks = subject.stacks
            if broken:
                return
        if self._subject:
            if not stacks:
                self._subject.executor = "loop"
            yield from judge((*algorithms.LAWS, space_laws.spaces), self._subject)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """All laws, each with whether it holds; PyTorch has one thread meanwhile, as in a trial."""
        with one_thread():
            return list(self.judge())

    @property
    def holds(self) -> bool:
        """Whether no law is broken."""
        return all(verdict.status != "broken" for verdict in self.verdicts)

    def title(self) -> str:
        """What is asked, in words."""
        parts = [f"algorithm {self.algorithm} ({self._cls.__name__})"] if self._cls else []
        parts += [f"model {self.model}{_called(self.model)}"] if self.model else []
        return " with ".join(parts) + f": {self._where()}"

    def _where(self) -> str:
        if not self.base:
            return "small clients of the digits data, three rounds"
        kind = "random" if self._subject else ""
        return " ".join(f"{kind} rows like those of {self.base.dataset}, model {self.base.model}".split())

    def __repr__(self) -> str:
        """A line for each law."""
        return "\n".join([self.title(), *map(line, self.verdicts), summary(self.verdicts)])


def line(verdict: Verdict) -> str:
    """A law and how it stands."""
    said = str(verdict.broken) if verdict.broken else verdict.note if verdict.status == "unknown" else verdict.law.says
    more = f" ({verdict.note})" if verdict.status == "holds" and verdict.note else ""
    return f"{WORDS[verdict.status]}  {verdict.law.name:14}  {said}{more}"


def summary(verdicts: list[Verdict]) -> str:
    """How many laws hold."""
    count = {status: sum(v.status == status for v in verdicts) for status in WORDS}
    if not count["broken"]:
        return f"all {count['holds']} laws hold"
    unknown = f", {count['unknown']} not checked" if count["unknown"] else ""
    return f"{count['broken']} of {len(verdicts)} laws broken, {count['holds']} hold{unknown}"


def _algorithm_and_model(what: str, model: str) -> tuple[str, str]:
    """The algorithm and the model by their canonical names, either of which may be empty."""
    known = registry.names()
    if model:
        model = user_files.take_each(model, catalogue.names())[0]
    if not what:
        if not model:
            raise UserError(f"something to check is needed: FILE.py:NAME, --model NAME, or one of {', '.join(known)}")
        return "", model
    what = user_files.take_each(what, known)[0]
    if what not in known and what in catalogue.names():
        what, model = "", what
    elif user_files.is_own(what) and _is_model(what):
        if model:
            raise UserError(f"one model at a time is checked, but {what} and {model} are models; give one of them")
        what, model = "", what
    return what, model


def _called(model: str) -> str:
    """What is found under a name in a user's file, and how it is called, in words."""
    found = user_files.load(model, "model") if user_files.is_own(model) else None
    if not inspect.isfunction(found):
        return ""
    taken = [p.name for p in inspect.signature(found).parameters.values() if p.default is p.empty]
    return "" if taken == ["shape", "classes"] else f" ({found.__name__}({', '.join(taken)}) as (shape, classes))"


def _is_model(name: str) -> bool:
    """Whether a name in a user's file is a model's function and no algorithm."""
    if user_files.call_options(name):
        return True
    found = user_files.load(name, "algorithm or model")
    if inspect.ismodule(found):
        return False
    return callable(found) and not (isinstance(found, type) and issubclass(found, Algorithm))


def _scenario(name: str, fields: dict[str, Any]) -> Scenario:
    """The scenario that laws are asked in: the named one, or the laws' own with other fields."""
    if name or "dataset" in fields:
        typed = {"model": user_files.reference(fields["model"])} if "model" in fields else {}
        given = fields | typed | {"evaluation": "personal"}
        return ExperimentOptions(algo="fedavg", scenario=name, fields=given).experiment().scenario
    return TINY.override(**{"features": 0, **fields} if "model" in fields else fields)
