"""Files that a program writes its figures to, read as they grow or are written anew."""

from __future__ import annotations

import csv
import glob
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedtune.core.errors import UserError, unknown
from fedtune.core.hyper import python_value
from fedtune.core.terminal import one_line
from fedtune.programs import command, isolation
from fedtune.programs.output import clean, shown
from fedtune.programs.rows import RowMaker
from fedtune.user_code import user_errors, user_files

SAME = 2**16  # bytes before the new ones that must be those that were read, or else the file was written anew
EVENTS = "events.out.tfevents"
HEADER, FOOTER = 12, 4  # bytes of a record around its event


def looks(rows: RowMaker, reported: Path, place: Path, values: Mapping[str, Any]) -> list[Callable[[bool], bool]]:
    """Functions that take what is new in files and tell whether anything was; True: the program ended without an error.

    reported: the file $FEDTUNE_ROWS; place: where the program runs; values: what names in braces stand for
    """
    found: list[Callable[[bool], bool]] = []
    if rows.by_name:
        found.append(_Lines(reported, rows.reported, lambda: rows.anew(rows.by_name)).look)
    if rows.program.file and rows.of_file:
        known = {name: glob.escape(command.text(value)) for name, value in values.items()}
        template = re.sub(r"[\[?]", r"[\g<0>]", rows.program.file)  # only * and ** stand for others
        found.append(_WrittenFile(os.path.join(glob.escape(str(place)), command.filled(template, known)), rows).look)
    return found


class _WrittenFile:
    """The file of a program's figures: found below folders whose names nobody knows, and read as it is written.

    What matches before the program starts is of an attempt before, and is put aside.
    """

    def __init__(self, pattern: str, rows: RowMaker) -> None:
        self._rows, self._name = rows, str(rows.program.file)
        self._events = self._name.endswith("/") and not rows.program.reader
        ends = (f"/{EVENTS}*", f"/**/{EVENTS}*") if self._events else ("",)
        if self._events:  # takes a second, in which no figure would be read
            import tensorboardX.proto.event_pb2  # noqa: F401
        self._patterns = [pattern.rstrip("/") + end for end in ends]
        self._base = Path(pattern.partition("*")[0] + "x").parent  # the folder of which all is known
        self._before: set[Path] = set()
        for match in self._new():
            isolation.put_aside(match)
        self._before = {path for pattern in self._patterns for path in _matches(pattern)}
        self._place: Path | None = None
        self._look: Callable[[bool], bool] = lambda ended: False
        rows.no_file = self._missing

    def look(self, ended: bool) -> bool:
        """Take what is new; whether there was anything.  ended: the program has, and without an error."""
        if self._place is None or ended:
            self._find()
        return self._look(ended)

    def _new(self) -> list[Path]:
        """The files that match and were not there before; those below a folder only if it has none itself."""
        found = (sorted(_matches(pattern) - self._before) for pattern in self._patterns)
        return next(filter(None, found), [])

    def _find(self) -> None:
        """UserError if there are two: figures of one could be taken for those of the other."""
        places = [path.parent for path in self._new()] if self._events else self._new()
        if places and self._place is None:
            self._place = places[0]
            self._look = _reader(self._place, self._events, self._before, self._rows)
        if others := [place for place in places if place != self._place]:
            one, other = (os.path.relpath(place, self._base) for place in (self._place or places[0], others[0]))
            both = f"{self._name} is both {one} and {other} in {self._base}"
            raise UserError(f"file must be one for each trial, but {both}; write more of its name")

    def _missing(self) -> str:
        if self._place and self._rows.columns:
            lacking = next((c for c, m in self._rows.columns.items() if m.name in self._rows.missing), "")
            return str(unknown(f"column of {self._name}", str(lacking), self._rows.found))
        advice = "; ** stands for folders whose names differ" * ("**" not in self._name)
        none = f"it must write {self._name}, but none is in {self._base}{advice}"
        return "its pattern may be wrong" if self._place else none


def _matches(pattern: str) -> set[Path]:
    return {Path(path) for path in glob.iglob(pattern, recursive=True, include_hidden=True)}


def _reader(path: Path, events: bool, before: set[Path], rows: RowMaker) -> Callable[[bool], bool]:
    if reader := rows.program.reader:
        return _Whole(path, _user_reader(reader), rows).look
    if events:
        return _events(path, before, rows)
    if path.suffix in (".csv", ".tsv", ".json"):
        load = _table if path.suffix != ".json" else lambda path, ended: json.loads(path.read_text())
        return _Whole(path, load, rows).look
    of_json = path.suffix in (".jsonl", ".ndjson")
    take = (lambda line: rows.record(_object(line, path), line)) if of_json else rows.text
    return _Lines(path, take, lambda: rows.anew(rows.of_file)).look


class _Lines:
    """The lines of a file that grows, or that is written anew with the same figures and more."""

    def __init__(self, path: Path, take: Callable[[str], None], anew: Callable[[], None]) -> None:
        """path: it need not be there yet.  take: is told each line.  anew: before those of a file written anew."""
        self.path, self._take, self._anew = path, take, anew
        self._place, self._last, self._inode = 0, b"", 0  # bytes that were read, up to the end of a line; the last

    def look(self, ended: bool) -> bool:
        """Take lines that are new, with `ended` also the last one if it has no end; whether there were any."""
        content = self._content()
        taken = content if ended else content[: content.rfind(b"\n") + 1]
        self._place, self._last = self._place + len(taken), (self._last + taken)[-SAME:]
        lines = [clean(line.rstrip(b"\r")).removeprefix("\ufeff") for line in taken.split(b"\n")]
        for line in filter(str.strip, lines):
            self._take(line)
        return bool(taken)

    def _content(self) -> bytes:
        """What is new in the file, from the end of a line on."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                file.seek(self._place - len(self._last))
                if status.st_ino != self._inode or file.read(len(self._last)) != self._last:
                    self._place, self._last, self._inode = 0, b"", status.st_ino
                    self._anew()
                file.seek(self._place)
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None


def _object(line: str, path: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(line), dict):
            return found
    raise UserError(f"{path} must have a JSON object on each line, but got {shown(line)!r}")


def _table(path: Path, ended: bool) -> list[dict[str, str]]:
    """The rows of a table, whose first line has the columns' names; the last line counts when it has its end."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = (text if ended else text[: text.rfind("\n") + 1]).split("\n")
    delimiter = "\t" if path.suffix == ".tsv" else ","
    rows = [row for row in csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True) if row]
    names = [name.strip() for name in rows[0]] if rows else []
    if uneven := next((row for row in rows if len(row) != len(names)), None):
        rule = f"{path} must have {len(names)} columns on each line"
        raise UserError(f"{rule}, but has {len(uneven)} in {shown(repr(uneven))}")
    # a program may write its header again where it goes on
    return [dict(zip(names, map(str.strip, row), strict=True)) for row in rows[1:] if row != rows[0]]


class _Whole:
    """A file that is read whole when it has changed: it is written anew each round, or is a table that grows."""

    def __init__(self, path: Path, load: Callable[[Path, bool], Any], rows: RowMaker) -> None:
        """load: what the file holds; it may fail while the file is being written."""
        self._path, self._load, self._rows = path, load, rows
        self._version: tuple[int, ...] = ()

    def look(self, ended: bool) -> bool:
        """Take figures that are new; whether the file has changed."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        before, self._version = self._version, (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._version == before and not ended:
            return False
        try:
            data = self._load(self._path, ended)
        except Exception as error:
            if not ended:
                return False
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self._path} cannot be read: {error}") from None
        if lacking := [name for name in self._rows.columns if self._load is _table and data and name not in data[0]]:
            raise unknown(f"column of {self._path}", str(lacking[0]), data[0])  # its first line says what there will be
        columns = {name: _column(data, name) for name in (self._rows.program.round_column, *self._rows.columns)}
        rounds = columns[self._rows.program.round_column]
        uneven = [name for name, values in columns.items() if rounds and values and len(values) != len(rounds)]
        if uneven and isinstance(data, dict):  # nothing says which entry is of which round
            if ended:
                has = f"has {len(rounds)} numbers and {len(columns[uneven[0]])} of {uneven[0]}; write null for none"
                raise UserError(f"{self._path} must have a round's number for each figure, but {has}")
            return False
        first = data[0] if isinstance(data, list) and data else data
        self._rows.found |= dict.fromkeys(map(str, first)) if isinstance(first, dict) else {}
        self._rows.anew(self._rows.of_file)
        for i in range(max(map(len, columns.values()))):
            record = {str(name): values[i] for name, values in columns.items() if i < len(values)}
            self._rows.record(record, f"entry {i + 1} of {self._path.name}: {record}")
        return True


def _column(data: Any, name: str) -> list[Any]:
    """A column of a list of rows, or of a mapping of columns; those inside others by dotted name."""
    if isinstance(data, list):
        values = [_inside(row, name) for row in data]
    else:
        found = _inside(data, name)
        values = [*found.values()] if isinstance(found, dict) else found if isinstance(found, list) else [found]
    while values and values[-1] is None:  # is not there yet
        values.pop()
    return values


def _inside(table: Any, name: str) -> Any:
    if isinstance(table, list):
        return _column(table, name)
    if not isinstance(table, dict) or name in table:
        return table[name] if isinstance(table, dict) else None
    return next((_inside(table[n], name[len(n) + 1 :]) for n in table if name.startswith(f"{n}.")), None)


def _user_reader(reader: str) -> Callable[[Path, bool], list[dict[str, Any]]]:
    execution, name = user_files.Execution(), Path(reader).name
    with execution.used():
        function = user_files.load(name, "reader")

    def load(path: Path, ended: bool) -> list[dict[str, Any]]:
        with execution.used(), user_errors.reported(f"{name} cannot read {path}"):
            rows = list(function(str(path)))
            if not all(isinstance(row, Mapping) for row in rows):
                raise TypeError(f"{name} must return a dict for each round, but got {shown(repr(rows))}")
        return [{str(n): python_value(value) for n, value in row.items()} for row in rows]

    return load


def _events(folder: Path, before: set[Path], rows: RowMaker) -> Callable[[bool], bool]:
    """A look at TensorBoard's event files in a folder.  before: those that are not read."""
    places: dict[Path, int] = {}  # bytes that were read

    def look(ended: bool) -> bool:
        was = dict(places)
        for path in sorted({*folder.glob(f"{EVENTS}*")} - before):
            try:
                scalars = list(_scalars(path, places))
            except Exception as error:  # of the disk, or of what decodes events
                raise UserError(f"{path} must be a file of TensorBoard's, but: {one_line(error)}") from None
            for step, tag, value in scalars:
                rows.record({rows.program.round_column: step, tag: value}, f"step {step}: {tag} {value:g}")
        return places != was

    return look


def _scalars(path: Path, places: dict[Path, int]) -> Iterator[tuple[int, str, float]]:
    """The new scalars of a file of records: a length, its checksum, an event and its checksum; no pictures and such."""
    from tensorboardX.proto.event_pb2 import Event  # which Ray Tune installs

    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (place := places.get(path, 0)) + HEADER <= size:
            file.seek(place)
            (length,) = struct.unpack("<Q", file.read(HEADER)[:8])
            if place + HEADER + length + FOOTER > size:
                return
            places[path] = place + HEADER + length + FOOTER
            event = Event.FromString(file.read(length))
            for value in event.summary.value:
                figures = value.tensor.float_val if value.HasField("tensor") else [value.simple_value]
                if len(figures) == 1 and value.HasField("tensor") | value.HasField("simple_value"):
                    yield event.step, value.tag, float(str(np.float32(figures[0])))  # 0.91, and not 0.9100000262
