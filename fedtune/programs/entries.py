"""The entries of a program file: their types, and the one line that says what is wrong with one of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError, ValidationInfo

from fedtune.core.errors import UserError, shown, unknown
from fedtune.programs import command

LARGEST = 2**53  # the largest whole number that every program reads as it is written
UNKNOWN = "unexpected_keyword_argument"
adapter = functools.cache(TypeAdapter)


def refused(value: object, rule: str, advice: str = "") -> UserError:
    """The error of a value that cannot be used: the rule, what came, what would do."""
    return UserError(f"must be {rule}, but got {shown(value)}{'; ' if advice else ''}{advice}")


def of_key(key: str, words: object) -> UserError:
    """What is wrong with a key."""
    return UserError(f"{key}{' ' if str(words).startswith('must ') else ': '}{words}")


@contextmanager
def at(key: str) -> Iterator[None]:
    """What is wrong in the block is told of this key."""
    try:
        yield
    except UserError as error:
        raise of_key(key, error) from None


def table(key: str, value: Any) -> Mapping[str, Any]:
    """A value that must be a table."""
    if not isinstance(value, Mapping):
        raise of_key(key, refused(value, "a table"))
    return value


def below(text: str, info: ValidationInfo) -> Path:
    """A path that may be relative to the program file."""
    return Path(os.path.normpath((info.context or Path.cwd()) / os.path.expanduser(text)))


def _words(value: Any) -> tuple[str, ...]:
    """A command: text that is split as a shell would, or a list of words."""
    words = command.split(value) if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words) or not any(words[:1]):
        raise refused(value, "a command, as text or as a list of words", "for example 'python train.py --lr {lr}'")
    return tuple(words)


Text = Annotated[str, Strict(), Field(pattern=r"\S")]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict(), Field(ge=0, le=LARGEST)]
Count = Annotated[int, Strict(), Field(ge=1, le=LARGEST)]
Number = Annotated[float, Strict(), Field(gt=-1e300, lt=1e300, allow_inf_nan=False)]
Seconds = Annotated[float, Strict(), Field(gt=0, lt=1e300, allow_inf_nan=False)]


def checked(kind: Any, entries: Mapping[str, Any], known: Mapping[str, Sequence[str]], base: Any = None) -> Any:
    """The entries in their types; UserError for the first that cannot be.

    known: the names that a table may have, by the key at the top that it is in.  base: the folder that paths are
    relative to
    """
    try:
        return adapter(kind).validate_python(entries, context=base)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise _refusal(next((e for e in found if e["type"] == UNKNOWN), found[0]), known) from None


def _refusal(error: Mapping[str, Any], known: Mapping[str, Sequence[str]]) -> UserError:
    parts = [str(part) for part in error["loc"] if part != "[key]"]
    if parts[0] == "space" and parts[-1] in ("range", "choices"):  # an entry may be this alone
        parts.pop()
    if error["type"] == UNKNOWN:
        above = f" of {'.'.join(parts[:-1])}" if parts[:-1] else ""
        return unknown(f"key{above}", parts[-1], known[parts[0] if above else ""])
    if error["type"] == "missing":
        return UserError(f"{'.'.join(parts)} must be there, but is missing")
    if error["type"] == "value_error":
        return of_key(".".join(parts), error["ctx"]["error"])
    rule = error["msg"].partition(" should ")[2].partition(" after validation")[0]
    return of_key(".".join(parts), f"must {rule}, but got {shown(error['input'])}")
