"""`fedtune check`: runs the checks of fedtune/conformance on an algorithm or a model, and prints one line for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from fedtune.conformance import algorithms, models
from fedtune.conformance.cases import TINY
from fedtune.conformance.check import CheckResult, Note, Violation, check, judge
from fedtune.conformance.models import ModelSubject
from fedtune.conformance.subject import Subject
from fedtune.core.about import page
from fedtune.core.errors import UserError
from fedtune.core.findings import Finding, summary
from fedtune.core.process import one_thread
from fedtune.experiment import registry
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue
from fedtune.programs.naming import is_program
from fedtune.tuning import space
from fedtune.tuning.options.options import ExperimentOptions
from fedtune.user_code import sources, user_files


@check("spaces", "every search space holds hyperparameters within their ranges", needs=("declarations",))
def spaces(s: Subject) -> Violation | Note | None:
    """The spaces of the algorithm's file, or the one made from its declarations."""
    names = []
    try:
        for name in (names := space.names(s.name)):
            for preset in ("", *s.cls.presets):
                space.load(name, Experiment(algorithm=s.name, scenario=Scenario(), preset=preset))
    except UserError as error:
        return Violation(
            sources.of_name(s.cls, "SPACES"), str(error), f"see {page('reference/your-code')} on search spaces"
        )
    return Note(", ".join(names))


class Check:
    """The conformance checks of an algorithm or a model, and whether each passes.

    Check("scaffold.py"), Check("net.py:transformer"), Check("gfpl", model="net.py:transformer(depth=2)")

    >>> import fedtune
    >>> check = fedtune.Check("fedavg")
    >>> next(iter(check.judge())).status
    'passed'
    """

    def __init__(
        self, what: str = "", scenario: str = "", model: str = "", set: Mapping[str, Any] | None = None, **fields: Any
    ) -> None:
        """UserError if `what` is no algorithm or model, or does not load.

        what       an algorithm or a model: a name, or FILE.py:NAME
        scenario   gives the data's shape, the model and the local training (default: small clients of many kinds)
        model      a model; it is checked by itself, and if an algorithm is given, then as its clients' model
        set        hyperparameters to hold fixed; fields of the scenario are keyword arguments
        """
        what, model = _algorithm_and_model(what, model)
        self.algorithm, self.model = what, model
        fields = {**fields, **({"model": model} if model else {})}
        self.base = _scenario(scenario, fields) if scenario or fields else None
        self._cls = registry.find(what) if what else None
        self._subject = Subject(cls=self._cls, name=what, base=self.base, values=set) if self._cls else None

    def judge(self) -> Iterator[CheckResult]:
        """The result of each check as soon as it is known: first the model's, then the algorithm's."""
        if self.model:
            assert self.base
            subject = ModelSubject(self.model, self.base)
            unfit = False
            for verdict in judge(models.CHECKS, subject):
                unfit |= verdict.status == "failed" and verdict.check.name == "fits"
                yield verdict
            if unfit:
                return
            if self._subject and not subject.stacks:
                self._subject.executor = "loop"
        if self._subject:
            yield from judge((*algorithms.CHECKS, spaces), self._subject)

    @cached_property
    def verdicts(self) -> list[CheckResult]:
        """The results of all checks; PyTorch uses one thread meanwhile, as in a trial."""
        with one_thread():
            return list(self.judge())

    @property
    def passed(self) -> bool:
        """Whether no check fails."""
        return all(verdict.status != "failed" for verdict in self.verdicts)

    def title(self) -> str:
        """What is checked, in words."""
        parts = [f"algorithm {self.algorithm} ({self._cls.__name__})"] if self._cls else []
        parts += [f"model {self.model}"] if self.model else []
        data = "small clients of the digits data, three rounds"
        if self.base:
            data = f"{'random ' * bool(self._subject)}rows like those of {self.base.dataset}, model {self.base.model}"
        return f"{' with '.join(parts)}: {data}"

    def __repr__(self) -> str:
        """A line for each check."""
        lines = list(map(found, self.verdicts))
        return "\n".join([self.title(), *map(str, lines), summary(lines)])


def found(verdict: CheckResult) -> Finding:
    """One check and its result, for a line."""
    text = str(verdict.violation or "") or (verdict.note if verdict.status == "skipped" else verdict.check.says)
    note = f" ({verdict.note})" if verdict.status == "passed" and verdict.note else ""
    return Finding(verdict.status, verdict.check.name, text + note)


def _algorithm_and_model(what: str, model: str) -> tuple[str, str]:
    algorithms = registry.names()
    if is_program(what):
        raise UserError(f"a program is checked on the command line, by `fedtune check {what}`")
    if not what and not model:
        known = ", ".join(algorithms)
        raise UserError(f"nothing to check was given; give FILE.py:NAME, --model NAME, or one of {known}")
    model = user_files.take_each(model, catalogue.names())[0] if model else ""
    what = user_files.take_each(what, algorithms)[0] if what else ""
    if what in algorithms or not what:
        return what, model
    is_model = user_files.is_own(what) and _is_model(what)
    if is_model and model:
        raise UserError(f"one model at a time is checked, but {what} and {model} are both models; give one of them")
    return ("", what) if is_model or catalogue.called(what)[0] in catalogue.names() else (what, model)


def _is_model(name: str) -> bool:
    if user_files.call_options(name):
        return True
    value = user_files.load(name, "algorithm or model")
    return callable(value) and not (isinstance(value, type) and issubclass(value, Algorithm))


def _scenario(name: str, fields: dict[str, Any]) -> Scenario:
    if name or "dataset" in fields:
        typed = {"model": user_files.reference(fields["model"])} if "model" in fields else {}
        given = fields | typed | {"evaluation": "personal"}
        return ExperimentOptions(algo="fedavg", scenario=name, fields=given).experiment().scenario
    return TINY.override(**{"features": 0, **fields} if "model" in fields else fields)
