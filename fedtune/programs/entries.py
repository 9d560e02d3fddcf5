"""The entries of a program file: their types, and the one line that says what is wrong with one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError, ValidationInfo

from fedtune.core.errors import UserError, shown, unknown
from fedtune.programs import command

LARGEST = 2**53  # the largest whole number that every program reads as it is written
UNKNOWN = "unexpected_keyword_argument"


def refused(value: object, rule: str, advice: str = "") -> UserError:
    """The error of a value that cannot be used: the rule, what came, what would do."""
    return UserError(f"must be {rule}, but got {shown(value)}{'; ' if advice else ''}{advice}")


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


class Source(NamedTuple):
    """Where entries were written: a file with the lines of its keys, or an option of a command."""

    name: str
    lines: Mapping[str, int]
    of_check: frozenset[str] = frozenset()  # the keys that [check] gives in place of those at the top

    @classmethod
    def of(cls, name: str, text: str) -> Source:
        """A TOML file's keys, each with the line that begins it."""
        lines: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), 1):
            if header := re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]", line):
                table = _plain(header[1])
                lines.setdefault(table, number)
            elif key := re.match(r"""\s*([\w."'-]+(?:\s*\.\s*[\w."'-]+)*)\s*=""", line):
                lines.setdefault(f"{table}.{_plain(key[1])}" if table else _plain(key[1]), number)
        return cls(name, lines)

    def key(self, key: str) -> str:
        """A key as it was written: perhaps in [check]."""
        return f"check.{key}" if key.partition(".")[0] in self.of_check else key

    def error(self, key: str, words: object) -> UserError:
        """What is wrong with a key, with its line or that of its table; words that begin with "must" follow the key."""
        subject = f"{self.key(key)} " if str(words).startswith("must ") else ""
        return UserError(f"{self.place(key)}: {subject}{words}")

    def place(self, key: str) -> str:
        """FILE:LINE of a key, or of the table that it is in."""
        at = self.key(key)
        while at and at not in self.lines:
            at = at.rpartition(".")[0]
        return f"{self.name}:{self.lines[at]}" if at else self.name

    def table(self, key: str, value: Any) -> Mapping[str, Any]:
        """A value that must be a table."""
        if not isinstance(value, Mapping):
            raise self.error(key, refused(value, "a table"))
        return value

    def checked(
        self, kind: TypeAdapter[Any], entries: Mapping[str, Any], known: Callable[..., Iterable[str]], base: Any = None
    ) -> Any:
        """The entries in their types; UserError for the first that cannot be.

        known: the names that a table may have, by the keys above it.  base: the folder that paths are relative to
        """
        try:
            return kind.validate_python(entries, context=base)
        except ValidationError as error:
            found = error.errors(include_url=False)
            raise self._refusal(next((e for e in found if e["type"] == UNKNOWN), found[0]), known) from None

    def _refusal(self, error: Mapping[str, Any], known: Callable[..., Iterable[str]]) -> UserError:
        """One line from what pydantic found."""
        parts = [str(part) for part in error["loc"] if part != "[key]"]
        if parts[0] == "space" and parts[-1] in ("range", "choices"):  # an entry may be this alone
            parts.pop()
        key, kind, given = ".".join(parts), error["type"], error.get("ctx", {})
        if kind == UNKNOWN:
            above = f" of {self.key('.'.join(parts[:-1]))}" if parts[:-1] else ""
            return self.error(key, unknown(f"key{above}", parts[-1], known(*parts[:-1])))
        if kind == "missing":
            return self.error("", f"{key} must be there, but is missing")
        if kind == "value_error":
            return self.error(key, given["error"])
        rule = error["msg"].partition(" should ")[2].partition(" after validation")[0]
        return self.error(key, f"must {rule}, but got {shown(error['input'])}")


def _plain(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)
