"""What a law is, what breaks one, and how laws are judged one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

S = TypeVar("S")


class Violation(NamedTuple):
    """What broke a law."""

    where: str  # a place in the author's file, `scaffold.py:41`; "" if there is none
    what: str
    what_to_do: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.what}; {self.what_to_do}" if self.where else f"{self.what}; {self.what_to_do}"


class Note(NamedTuple):
    """What an author should know although the law holds."""

    what: str


class RunFailed(Exception):
    """A run that a law needs stopped with an error, told as what broke."""

    def __init__(self, broken: Violation, error: BaseException) -> None:
        """broken: the error in words; error: as it was raised."""
        super().__init__(str(broken))
        self.broken, self.error = broken, error


@dataclass(frozen=True)
class Law(Generic[S]):
    """A property that every algorithm, or every model, must have; call it with a subject to see whether it has."""

    name: str
    says: str  # in one sentence
    look: Callable[[S], Violation | Note | None]
    needs: tuple[str, ...] = ()  # laws without which it says nothing: they are broken first

    def __call__(self, subject: S) -> Violation | Note | None:
        """What breaks the law, or what should be known; nothing where it simply holds."""
        return self.look(subject)


class Verdict(NamedTuple):
    """How one law stands."""

    law: Law
    status: Literal["holds", "broken", "unknown"]
    broken: Violation | None = None
    note: str = ""  # why it is unknown, or what should be known although it holds


def law(
    name: str, says: str, needs: tuple[str, ...] = ()
) -> Callable[[Callable[[S], Violation | Note | None]], Law[S]]:
    """Make a law of the function that looks for what breaks it."""
    return lambda look: Law(name, says, look, needs)


def judge(laws: Sequence[Law[S]], subject: S) -> Iterator[Verdict]:
    """Every law in order.  One that builds on a broken one, or on a run that is known to stop, stays unknown."""
    open_: dict[str, str] = {}  # laws that do not hold, each with the one to mend first
    told: set[Violation] = set()
    for one in laws:
        first = next((open_[name] for name in one.needs if name in open_), "")
        if first:
            open_[one.name] = first
            yield Verdict(one, "unknown", note=f"not checked before {first!r} holds")
            continue
        try:
            found = one(subject)
        except RunFailed as fell:
            if fell.broken in told:
                open_[one.name] = one.name
                yield Verdict(one, "unknown", note="not checked, as it needs a run that stops; see above")
                continue
            found = fell.broken
        if isinstance(found, Violation):
            open_[one.name] = one.name
            told.add(found)
            yield Verdict(one, "broken", found)
        else:
            yield Verdict(one, "holds", note=found.what if found else "")
