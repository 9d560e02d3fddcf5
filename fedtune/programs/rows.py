"""Rows of rounds from what a program prints and writes.

A metric comes by a pattern of its lines, by a column of a file, or by its name in a row that the program reports
(a line `fedtune {"round": 3, "val_acc": 0.91}`, or a line of $FEDTUNE_ROWS without the mark).  A round is complete when
all its metrics have come.  Nothing is guessed: figures that contradict one another are refused with their line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import regex

from fedtune.core.errors import Diverged, UserError, unknown
from fedtune.core.metrics import limits
from fedtune.core.terminal import printable, several
from fedtune.programs.metric import NEEDLE, ProgramMetric, compiled
from fedtune.programs.output import shown
from fedtune.programs.program_file import Program

MARK = re.compile(r"(?<![\w-])fedtune (?=\{)")
NUMBER = re.compile(r"\s*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)\s*", re.IGNORECASE)
MORE_OF_IT = re.compile(r"(?<=\d)\.?[eE][+-]?\d|(?<=\d)\.?\d|(?<=[\d.])\d")  # what goes on after a group's end
COMMA = re.compile(r",\d")  # after a whole number: of one with a comma, 0,91 or 1,234; or of two numbers
MINUS = re.compile(r"(?:^|[^\w)\]])[-\u2212]$")  # a sign before a group, and no dash in a word
# not that of the best until then: "acc 0.5, best 0.6 (round 3)"
NAMES_ROUND = re.compile(r"(?:(?!best).)*?(?<![a-z])round(?: number)?\W{0,3}(\d{1,9})\b", re.IGNORECASE)
NOT_FINITE = re.compile(r"(?<![A-Za-z])[+-]?(?:nan|inf(?:inity)?)(?![A-Za-z])", re.IGNORECASE)
STAND_INS = ("0.5", *(f"{number:.{digits}f}" for number in (0.5, 50.5) for digits in range(7)))  # for nan and inf

LONGEST = 1.0  # seconds of computing in which a pattern must be done with a line
BEFORE, AFTER = 120, 60  # characters of a line that are shown around a figure
GREEDY = re.compile(r"(?<!\\)\.([*+])(?![?+])")  # takes as much of a line as it can
SEARCHED = 4096  # characters of a line that patterns are tried on: some take the square of its length


class Figure(NamedTuple):
    """A value of a metric as it came."""

    metric: ProgramMetric
    value: Any  # text, or what JSON has
    round: Any  # the number that the program gives its round; None if it gives none
    said: str  # the line that had it
    at: tuple[int, int] | None = None  # its place there, if a pattern found it

    def marked(self) -> str:
        """Its line, with the figure marked where its place is known."""
        line, (begin, end) = self.said, self.at or (len(self.said), len(self.said))
        first, last = max(0, begin - BEFORE), min(len(line), end + AFTER)
        marked = f">>{line[begin:end]}<<" if self.at else ""
        text = f"{'…' * (first > 0)}{line[first:begin]}{marked}{line[end:last]}{'…' * (last < len(line))}"
        return printable(text.strip())

    def doubts(self) -> str:
        """Why it may be another than its metric says; "" if nothing says so."""
        m, found = self.metric, ""
        if self.at and not m.tests and m.split is None and (word := NEEDLE.search(self.said[: self.at[0]])):
            advice = 'make the pattern find another figure, or say split = "test"; otherwise say split = "validation"'
            found = f"; the word {word[0]} stands before it: if it is of test rows, {advice}"
        if m.pattern and (lazy := GREEDY.sub(r".\1?", m.pattern)) != m.pattern:
            with suppress(UserError):  # it takes a part of a number only
                others = Pattern(replace(m, pattern=lazy)).found(self.said)
                if others and others[0].at != self.at:
                    found += f"; a shorter match reads {others[0].value}: write .*? for .* if that is meant"
        return found


class RowMaker:
    """Makes rows of figures."""

    def __init__(self, program: Program, selects: Collection[str]) -> None:
        """selects: the metrics that may not be NaN or infinite."""
        self.program, self._selects = program, selects
        self.complete: list[tuple[int, dict[str, float]]] = []  # rows with their rounds, until somebody takes them
        self._patterns = [Pattern(m) for m in program.metrics.values() if m.pattern]
        self.by_name = {m.name: m for m in program.metrics.values() if not m.pattern and not m.column}
        self.columns = {m.column: m for m in program.metrics.values() if m.column}
        from_file = program.reads_text and {m.name for m in program.metrics.values() if m.pattern}
        self.of_file = from_file or {m.name for m in self.columns.values()}  # the metrics that come from the file
        self._written: dict[str, list[Any]] = {name: [] for name in program.metrics}  # what was read in files
        self._read = dict.fromkeys(program.metrics, 0)  # how much of it, since a file was begun
        self._came = dict.fromkeys(program.metrics, 0)  # figures of each metric, with those that do not count
        self._row: dict[str, float] = {}  # of the round that is not complete
        self._named: dict[str, int] = {}  # the round that the last line of a metric told of, where reports are counted
        self.round = 0  # the last that is complete
        self.begins_anywhere = False  # the first row may be of any round: the program goes on from a checkpoint
        self.no_file: Callable[[], str] = lambda: f"it must write {program.file}"  # what may be wrong with its file
        self.first: dict[str, Figure] = {}  # of each metric
        self.others: dict[str, None] = {}  # names in reported rows that are no metrics
        self.found: dict[str, None] = {}  # the columns of the file

    @property
    def missing(self) -> list[str]:
        """What the round that is not complete lacks."""
        return [name for name in self.program.metrics if name not in self._row]

    def advice(self) -> str:
        """What may be wrong if no figure came."""
        first = self.program.metrics[self.missing[0]]
        if first.name in self.of_file:
            return self.no_file()
        if first.pattern:
            return "its pattern may be wrong"
        return f"""it must print a line such as fedtune {{"round": 1, "{first.name}": 0.9}}"""

    def line(self, line: str) -> None:
        """A line that the program printed."""
        for pattern in () if self.program.reads_text else self._patterns:
            for figure in pattern.found(line):
                self._take(figure)
        if "fedtune {" in line and self.by_name and (found := MARK.search(line)):
            for figure in self._reported(line[found.end() :], line):
                self._take(figure)

    def anew(self, names: Iterable[str]) -> None:
        """A file with these metrics is read from its beginning: what was read of it before must be there again."""
        self._read |= dict.fromkeys(names, 0)

    def text(self, line: str) -> None:
        """A line of the file, if that is a text."""
        for pattern in self._patterns:
            for figure in pattern.found(line):
                self._take_written(figure)

    def reported(self, line: str) -> None:
        """A line of $FEDTUNE_ROWS."""
        for figure in self._reported(line.strip().removeprefix("fedtune "), line):
            self._take_written(figure)

    def record(self, record: Mapping[str, Any], line: str) -> None:
        """A row of the file, by column; a column that is empty is left out."""
        column = self.program.round_column
        if column not in record and column != "round":
            raise unknown("column of the round", column, map(str, record))
        for name, value in record.items():
            self.found.setdefault(name)
            if name in self.columns and value not in (None, ""):
                self._take_written(Figure(self.columns[name], value, record.get(column), line))

    def _reported(self, text: str, line: str) -> Iterator[Figure]:
        try:
            row, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError(f'a row must be JSON such as {{"round": 3, "val_acc": 0.91}}, but got {shown(line)!r}')
        number = row.pop("round", None)
        for name, value in row.items():
            if name not in self.by_name:
                self.others.setdefault(name)
            elif value is not None:
                yield Figure(self.by_name[name], value, number, line)

    def _take_written(self, figure: Figure) -> None:
        """Take a figure of a file, unless it was read before the file was written anew: then it must be the same."""
        name, now = figure.metric.name, repr((figure.value, figure.round))
        at, written = self._read[name], self._written[name]
        self._read[name] += 1
        if at == len(written):
            written.append(now)
            self._take(figure)
        elif written[at] != now:
            rule = f"a file of figures must grow, but the {at + 1}. figure of {name} was written anew"
            raise self._refuse(figure, rule, "append to it, or write it with what was there and more")

    def _take(self, figure: Figure) -> None:
        m = figure.metric
        self._came[m.name] += 1
        counted = self._came[m.name] - m.skip * m.every
        if counted <= 0 or counted % m.every:
            return
        self._place(figure)
        self._require_same_step(figure)
        value = self._value(figure)
        if m.name in self._row:
            lacking = ", ".join(self.missing) or "the next round"
            how = "make its pattern more exact" if m.pattern else "report it once"
            advice = f"{how}, or say how many come by `every`"
            if any(name in self.of_file and not self._came[name] for name in self.missing):
                advice = self.no_file()
            rule = f"each metric must come once a round, but {m.name} came twice before {lacking}"
            raise self._refuse(figure, rule, advice)
        self._row[m.name] = value
        self.first.setdefault(m.name, figure)
        if not self.missing:
            self.round += self.program.every
            row, self._row = self._row, {}
            self.complete.append((self.round, row))

    def _place(self, figure: Figure) -> None:
        """UserError unless a figure is of the round that is not complete yet."""
        name, last, every, first = figure.metric.name, self.program.rounds, self.program.every, self.program.first_round
        if figure.round is not None:
            number = self._whole(figure) - first + 1
            if self.begins_anywhere:
                self.begins_anywhere, self.round = False, max(0, number - every) // every * every
            if number != self.round + every:
                rule = f"{', '.join(self.missing)} of round {self.round + every + first - 1} must come next"
                advice = "if it is right, see `first_round`, `report_every`, `skip`, and `every` of a metric"
                raise self._refuse(figure, f"{rule}, but {name} of round {figure.round} came", advice)
        if self.round >= last:
            raise self._refuse(figure, f"a run has {last} rounds, but another {name} came after the last")

    def _require_same_step(self, figure: Figure) -> None:
        """UserError if reports are counted, but their lines tell of rounds that are farther apart, or closer."""
        name, every = figure.metric.name, self.program.every
        said = NAMES_ROUND.match(figure.said) if figure.round is None and self.program.report_every != 1 else None
        if said is None:
            return
        number, before = int(said[1]), self._named.get(name)
        self._named[name] = number
        if before is not None and number > before and number - before != every:
            rule = f"a report stands for {several(every, 'round')}, but {name} tells of round {before} and {number}"
            advice = f"write report_every = {number - before}, or 1 if these are no rounds that were trained"
            raise self._refuse(figure, rule, advice)

    def _whole(self, figure: Figure) -> int:
        with suppress(TypeError, ValueError, OverflowError):
            number = float(figure.round)
            if not isinstance(figure.round, bool) and number.is_integer() and abs(number) <= 2**53:
                return int(number)
        raise self._refuse(figure, f"a round's number must be whole, but got {figure.round!r}")

    def _value(self, figure: Figure) -> float:
        m, given = figure.metric, figure.value
        good = NUMBER.fullmatch(given) if isinstance(given, str) else isinstance(given, int | float)
        if not good or isinstance(given, bool):
            rule = f"{m.name} must be a number, but got {given!r}"
            raise self._refuse(figure, rule, "make the group hold nothing else")
        try:
            value = float(given) / m.divide
        except OverflowError:  # a whole number of hundreds of digits
            value = math.inf
        if not math.isfinite(value):
            if m.name in self._selects:
                raise Diverged(f"{m.name} is {value} in round {self.round + 1}: {shown(figure.said)!r}")
            return value
        low, high = limits(m.name)
        if high == 1.0 and not low <= value <= high:  # a share; a loss of the program's may be another than ours
            advice = "give divide = 100 if it is a percentage" if value <= 100 else "choose another name"
            raise self._refuse(figure, f"{m.name} must be within {low:g} and {high:g}, but is {value:g}", advice)
        return value

    def _refuse(self, figure: Figure, rule: str, advice: str = "") -> UserError:
        return UserError(f"{rule}, in {shown(figure.said)!r}{'; ' if advice else ''}{advice}")


class Pattern:
    """A metric's pattern, which also finds the line where the number is nan or inf but the group holds digits only."""

    def __init__(self, m: ProgramMetric) -> None:
        """m: a metric that has one."""
        assert m.pattern
        self.metric, self._pattern = m, compiled(m.pattern)
        self._round = "round" in self._pattern.groupindex
        self._group = 2 if self._pattern.groupindex.get("round") == 1 else 1  # that holds the number

    def found(self, line: str) -> list[Figure]:
        """The figures in a line."""
        tried = line if len(line) <= SEARCHED else line[:SEARCHED].rpartition(" ")[0]  # whose last word may be cut
        found = self._matches(tried)
        usual = any(NUMBER.fullmatch(m[self._group] or "") for m in found) or not NOT_FINITE.search(tried)
        if not usual and (unusual := self._not_finite(tried)):
            return unusual
        for match in found:
            self._require_whole(match, tried)
        return [self._figure(m, m[self._group] or "", m.span(self._group), line) for m in found]

    def _figure(self, match: regex.Match[str], value: str, at: tuple[int, int], line: str) -> Figure:
        return Figure(self.metric, value, match["round"] if self._round else None, line, at)

    def _not_finite(self, line: str) -> list[Figure]:
        """Those where the pattern would find a number if digits stood in place of nan and inf."""
        words = list(NOT_FINITE.finditer(line))
        for digits in STAND_INS:
            shift, places = 0, {}
            for word in words:
                places[word.start() + shift] = word
                shift += len(digits) - len(word[0])
            matches = [m for m in self._matches(NOT_FINITE.sub(digits, line)) if m[self._group] == digits]
            if found := [(m, places[m.start(self._group)]) for m in matches if m.start(self._group) in places]:
                return [self._figure(m, word[0], word.span(), line) for m, word in found]
        return []

    def _matches(self, line: str) -> list[regex.Match[str]]:
        try:
            return list(self._pattern.finditer(line, timeout=LONGEST, concurrent=True))
        except TimeoutError:
            rule = f"must find its figure within {LONGEST:g} second, but did not in {shown(line)!r}"
            advice = "repeat nothing that may be repeated in several ways, as (a+)+ or (a|aa)+ may"
            raise UserError(f"the pattern of {self.metric.name} {rule}; {advice}") from None

    def _require_whole(self, match: regex.Match[str], line: str) -> None:
        """UserError if the group took a part of a number only: 1.2 of 1.2e-05, or 0.5 of -0.5."""
        begin, end = match.span(self._group)
        if begin < end and (MORE_OF_IT.match(line, end) or MINUS.search(line[max(0, begin - 2) : begin])):
            rule = f"must take the whole figure, but it takes {line[begin:end]!r} only, in {shown(line)!r}"
            raise UserError(f"the pattern of {self.metric.name} {rule}; write ([^ ]+) for the group, for example")
        if match.end() == end and line[begin:end].lstrip("+-").isdigit() and COMMA.match(line, end):
            rule = f"must say where the figure ends, but {line[begin:end]!r} may be a part of {line[begin : end + 6]!r}"
            advice = "numbers have points, and if these are two, write the comma after the group"
            raise UserError(f"the pattern of {self.metric.name} {rule}; {advice}")
