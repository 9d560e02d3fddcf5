"""Files that a program writes its figures to, read as they grow: JSON lines, CSV, TensorBoard's event files."""

from __future__ import annotations

import csv
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.terminal import one_line
from fedtune.programs.output import clean, shown
from fedtune.programs.rows import RowMaker

MOST = 2**24  # bytes that are read at a time
LINE = 2**20  # bytes of a line, at most
EVENTS = "events.out.tfevents"
HEADER, FOOTER = 12, 4  # bytes of a record around its event


def reader(path: Path, rows: RowMaker) -> Callable[[bool], bool]:
    """A function that reads what is new and tells whether something was; its argument: the program has ended."""
    if path.suffix in (".csv", ".tsv"):
        return _Table(path, rows).look
    if path.suffix in (".jsonl", ".ndjson"):
        return _JsonLines(path, rows).look
    return _Events(path, rows).look


class Tail:
    """The lines of a file that grows, or that is written anew with the same lines and more."""

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self.path = path
        self._place = 0  # bytes that were read, up to the end of a line
        self._inode = 0
        self._seen = _Seen()
        self._again: _Seen | None = None  # the lines that are read again, because the file was written anew

    def new(self, ended: bool = False) -> Iterator[str]:
        """Lines that are new; with `ended` also the last one if it has no end."""
        while content := self._content():
            whole, end, rest = content.rpartition(b"\n")
            lines = whole.split(b"\n") if end else []
            if len(content) < MOST and ended and rest:
                lines, rest = [*lines, rest], b""
            elif len(rest) > LINE:
                raise UserError(f"a line must have at most {LINE:,} bytes, but {self.path} has a longer one")
            self._place += len(content) - len(rest)
            yield from self._unseen(lines)
            if len(content) < MOST:
                return

    def _content(self) -> bytes:
        """What is new in the file, from the end of a line on."""
        try:
            with bounded.opened(self.path, limit=2**60) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._place or not self._at_line(file):
                    self._place, self._inode = 0, status.st_ino
                    self._again = _Seen() if self._seen.lines else None
                file.seek(self._place)
                return file.read(MOST)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UserError(f"what the program writes must be readable, but {self.path}: {error.strerror}") from None

    def _at_line(self, file: Any) -> bool:
        if not self._place:
            return True
        file.seek(self._place - 1)
        return bool(file.read(1) == b"\n")

    def _unseen(self, lines: list[bytes]) -> Iterator[str]:
        for line in lines:
            text = clean(line.rstrip(b"\r")).removeprefix("\ufeff")
            if not text.strip():
                continue
            if self._again:
                self._again.add(text)
                if self._again.lines == self._seen.lines:
                    self._require_the_same(self._again)
                    self._again = None
                continue
            self._seen.add(text)
            yield text

    def _require_the_same(self, again: _Seen) -> None:
        if again.sum != self._seen.sum:
            raise UserError(
                f"a file of figures must grow, but {self.path} was written anew with other lines; append to it"
            )


class _Seen:
    """How many lines were read, and a hash of them all."""

    lines, sum = 0, 0

    def add(self, line: str) -> None:
        self.lines, self.sum = self.lines + 1, hash((self.sum, line))


class RowsFile:
    """The rows that a program appends to $FEDTUNE_ROWS."""

    def __init__(self, path: Path, rows: RowMaker) -> None:
        """path: the file, in the trial's folder."""
        self._tail, self._rows = Tail(path), rows

    def look(self, ended: bool = False) -> bool:
        """Take new rows; whether there were any."""
        new = False
        for line in self._tail.new(ended):
            new = True
            self._rows.reported(line.strip().removeprefix("fedtune "), line)
        return new


class _JsonLines:
    def __init__(self, path: Path, rows: RowMaker) -> None:
        self._tail, self._rows = Tail(path), rows

    def look(self, ended: bool) -> bool:
        new = False
        for line in self._tail.new(ended):
            new = True
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                raise UserError(f"{self._tail.path} must have a JSON object on each line, but got {shown(line)!r}")
            self._rows.record(record, line)
        return new


class _Table:
    def __init__(self, path: Path, rows: RowMaker) -> None:
        self._tail, self._rows = Tail(path), rows
        self._delimiter = "\t" if path.suffix == ".tsv" else ","
        self._header: list[str] = []

    def look(self, ended: bool) -> bool:
        new = False
        for line in self._tail.new(ended):
            new = True
            try:
                cells = [cell.strip() for cell in next(csv.reader([line], delimiter=self._delimiter, strict=True))]
            except (csv.Error, StopIteration) as error:
                raise UserError(f"{self._tail.path} must be a table, but got {shown(line)!r}: {error}") from None
            if not self._header:
                self._header = cells
                self._rows.require_columns(cells, self._tail.path)
            elif len(cells) != len(self._header):
                raise UserError(
                    f"{self._tail.path} must have {len(self._header)} columns on each line, but has {len(cells)} in "
                    f"{shown(line)!r}"
                )
            elif cells != self._header:  # a program may write its header again where it goes on
                self._rows.record(dict(zip(self._header, cells, strict=True)), line)
        return new


class _Events:
    """TensorBoard's event files in a folder: records of a length, its checksum, the event and its checksum."""

    def __init__(self, path: Path, rows: RowMaker) -> None:
        self._folder, self._rows = path, rows
        self._places: dict[Path, int] = {}
        self._event = _event_class()

    def look(self, ended: bool) -> bool:
        new = False
        for path in sorted(self._folder.glob(f"{EVENTS}*")):
            try:
                scalars = list(self._scalars(path))
            except Exception as error:  # of the disk, or of what decodes events
                raise UserError(f"{path} must be a file of TensorBoard's, but: {one_line(error)}") from None
            for step, tag, value in scalars:
                new = True
                if tag in self._rows.columns:
                    self._rows.record({tag: value, self._rows.round_column: step}, f"step {step}: {tag} {value:g}")
        return new

    def _scalars(self, path: Path) -> Iterator[tuple[int, str, float]]:
        """The scalars of events that are whole; pictures and the like are passed over."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while (place := self._places.get(path, 0)) + HEADER <= size:
                file.seek(place)
                (length,) = struct.unpack("<Q", file.read(HEADER)[:8])
                if place + HEADER + length + FOOTER > size:
                    return
                self._places[path] = place + HEADER + length + FOOTER
                if length > MOST:
                    continue
                event = self._event.FromString(file.read(length))
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        yield event.step, value.tag, float(_float32(value.simple_value))
                    elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                        yield event.step, value.tag, float(_float32(value.tensor.float_val[0]))


def _float32(value: float) -> str:
    """A number of 32 bits with the fewest digits that tell it from others: 0.91 and not 0.9100000262260437."""
    return next(
        (
            text
            for digits in range(6, 10)
            if struct.unpack("f", struct.pack("f", float(text := f"{value:.{digits}g}")))[0] == value
        ),
        repr(value),
    )


def _event_class() -> Any:
    with suppress(ImportError):
        from tensorboardX.proto.event_pb2 import Event

        return Event
    with suppress(ImportError):
        from tensorboard.compat.proto.event_pb2 import Event

        return Event
    raise UserError(
        "TensorBoard's files are read by tensorboardX or tensorboard, but neither is installed; install one by pip, "
        "or write a .csv"
    )
