"""What a conformance check is, what it reports, and how checks run one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

S = TypeVar("S")


class Violation(NamedTuple):
    """Why a check fails: what was found, where, and how to fix it."""

    place: str  # in the author's file, `scaffold.py:41`; "" if there is none
    what: str
    advice: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.place}: {self.what}; {self.advice}" if self.place else f"{self.what}; {self.advice}"


class Note(NamedTuple):
    """Information for an author although the check passes."""

    what: str


class RunFailed(Exception):
    """A run that a check needs stopped with an error."""

    def __init__(self, violation: Violation, error: BaseException) -> None:
        """violation: the error in words; error: as it was raised."""
        super().__init__(str(violation))
        self.violation, self.error = violation, error


@dataclass(frozen=True)
class ConformanceCheck(Generic[S]):
    """A property that every algorithm, or every model, must have; call it with a subject to test the subject for it."""

    name: str
    says: str  # the property in one sentence
    look: Callable[[S], Violation | Note | None]
    needs: tuple[str, ...] = ()  # checks that must pass first

    def __call__(self, subject: S) -> Violation | Note | None:
        """The violation, if the check fails; a note, if it passes with something to know; otherwise None."""
        return self.look(subject)


class CheckResult(NamedTuple):
    """The result of one check."""

    check: ConformanceCheck
    status: Literal["passed", "failed", "skipped"]
    violation: Violation | None = None
    note: str = ""  # why it was skipped, or what to know although it passed


def check(
    name: str, says: str, needs: tuple[str, ...] = ()
) -> Callable[[Callable[[S], Violation | Note | None]], ConformanceCheck[S]]:
    """Make a conformance check of the function that looks for a violation."""
    return lambda look: ConformanceCheck(name, says, look, needs)


def judge(checks: Sequence[ConformanceCheck[S]], subject: S) -> Iterator[CheckResult]:
    """Run every check in order.  One that needs a failed check, or a run that is known to stop, is skipped."""
    not_passed: dict[str, str] = {}  # checks that did not pass, each with the one to fix first
    reported: set[Violation] = set()
    for current in checks:
        blocker = next((not_passed[name] for name in current.needs if name in not_passed), "")
        if blocker:
            not_passed[current.name] = blocker
            yield CheckResult(current, "skipped", note=f"needs {blocker!r} to pass first")
            continue
        try:
            outcome = current(subject)
        except RunFailed as stopped:
            if stopped.violation in reported:
                not_passed[current.name] = current.name
                yield CheckResult(current, "skipped", note="needs a run that stops with an error; see above")
                continue
            outcome = stopped.violation
        if isinstance(outcome, Violation):
            not_passed[current.name] = current.name
            reported.add(outcome)
            yield CheckResult(current, "failed", outcome)
        else:
            yield CheckResult(current, "passed", note=outcome.what if outcome else "")
