"""What a conformance check is, what it reports, and how checks run one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

S = TypeVar("S")


class Violation(NamedTuple):
    """Why a check fails: what was found, where, and how to fix it."""

    where: str  # a place in the author's file, `scaffold.py:41`; "" if there is none
    what: str
    what_to_do: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.what}; {self.what_to_do}" if self.where else f"{self.what}; {self.what_to_do}"


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
    says: str  # in one sentence
    look: Callable[[S], Violation | Note | None]
    needs: tuple[str, ...] = ()  # checks that must pass first: without them this one says nothing

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
    open_: dict[str, str] = {}  # checks that did not pass, each with the one to fix first
    reported: set[Violation] = set()
    for one in checks:
        first = next((open_[name] for name in one.needs if name in open_), "")
        if first:
            open_[one.name] = first
            yield CheckResult(one, "skipped", note=f"needs {first!r} to pass first")
            continue
        try:
            found = one(subject)
        except RunFailed as stopped:
            if stopped.violation in reported:
                open_[one.name] = one.name
                yield CheckResult(one, "skipped", note="needs a run that stops with an error; see above")
                continue
            found = stopped.violation
        if isinstance(found, Violation):
            open_[one.name] = one.name
            reported.add(found)
            yield CheckResult(one, "failed", found)
        else:
            yield CheckResult(one, "passed", note=found.what if found else "")
