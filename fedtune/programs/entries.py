"""The entries of a program file, each taken in its type; whatever else it holds is refused with file, line and key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedtune.core.errors import UserError, shown, unknown
from fedtune.programs import command

LARGEST = 2**53  # the largest whole number that every program reads as it is written


class EntrySource(NamedTuple):
    """Where entries were written: a file with the lines of its keys, or options of a command."""

    name: str
    lines: Mapping[str, int]

    @classmethod
    def of_file(cls, name: str, text: str) -> EntrySource:
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

    def place(self, key: str) -> str:
        """FILE:LINE of a key, or of the table that it is in."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.name}:{self.lines[key]}" if key else self.name

    def error(self, key: str, words: object) -> UserError:
        """What is wrong with a key, with its place."""
        return UserError(f"{self.place(key)}: {words}")


def _plain(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)


class Entry(NamedTuple):
    """A value of the file with its key, `metrics.val_acc.skip`."""

    source: EntrySource
    key: str
    value: Any

    def refuse(self, rule: str, advice: str = "") -> UserError:
        """The error for a value that cannot be used: the rule, what came, what would do."""
        end = f"; {advice}" if advice else ""
        return self.source.error(self.key, f"{self.key} must be {rule}, but got {shown(self.value)}{end}")

    def child(self, name: str) -> Entry:
        """An entry of this table."""
        return Entry(self.source, f"{self.key}.{name}" if self.key else name, self.value[name])

    def table(self, known: Iterable[str] | None = None, example: str = "") -> dict[str, Entry]:
        """Its entries by name; UserError if it is no table, or for a name that is not known."""
        if not isinstance(self.value, Mapping):
            raise self.refuse("a table", example)
        for name in self.value:
            if known is not None and name not in known:
                kind = f"key of {self.key}" if self.key else "key"
                raise self.source.error(self.child(name).key, unknown(kind, name, known))
        return {name: self.child(name) for name in self.value}

    def text(self, example: str) -> str:
        """A text that is not empty."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.refuse("text", f"for example {example}")
        if "\0" in self.value:
            raise self.refuse("text without null characters")
        return self.value

    def one_of(self, *known: str) -> str:
        """One of these words."""
        if self.value not in known or not isinstance(self.value, str):
            raise self.refuse(" or ".join(map(repr, known)))
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def whole(self, least: int) -> int:
        """A whole number of at least this."""
        good = isinstance(self.value, int) and not isinstance(self.value, bool)
        if not good or not least <= self.value <= LARGEST:
            raise self.refuse(f"a whole number of {least} or more")
        return int(self.value)

    def number(self, above: float = -math.inf) -> float:
        """A finite number above this."""
        good = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not good or not math.isfinite(self.value) or not above < self.value < 1e300:
            raise self.refuse("a number" if above == -math.inf else f"a number above {above:g}")
        return float(self.value)

    def words(self, example: str) -> tuple[str, ...]:
        """A command: text that is split as a shell would, or a list of words."""
        if isinstance(self.value, list):
            if not self.value or not all(isinstance(word, str) and "\0" not in word for word in self.value):
                raise self.refuse("a list of words", f"for example {example}")
            found = self.value
        else:
            text = self.text(example)
            try:
                found = command.split(text)
            except UserError as error:
                raise self.source.error(self.key, f"{self.key} {error}") from None
        if not found or not found[0]:
            raise self.refuse("a command", f"for example {example}")
        return tuple(found)

    def names(self, words: Iterable[str], known: Iterable[str]) -> list[str]:
        """The names in braces in these words; UserError for one that is not known."""
        try:
            found = command.names(list(words))
        except UserError as error:
            raise self.source.error(self.key, f"{self.key} {error}") from None
        for name in found:
            if name not in known:
                raise self.source.error(
                    self.key,
                    f"{unknown(f'name in {self.key}', name, known)}; declare it in [space] or [defaults], or write "
                    f"{{{{{name}}}}} for braces of the program's own",
                )
        return found
