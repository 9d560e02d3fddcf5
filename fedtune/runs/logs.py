"""The logs of a search: every trial's results, logged by Ray, and every suggestion, logged by the searcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.runs import reading
from fedtune.runs.files import RunFiles

Row = dict[str, Any]
END = 64  # a log was written anew if the last bytes that were read of it have changed; so many are compared


def logged(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of every trial, from Tune's logs; a line that was truncated when its writer died is skipped."""
    results: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(run.glob("*/result.json")):
        for row in reading.rows(file):
            results.setdefault(row["trial_id"], []).append(_compact(row))
    return results


def _compact(row: Row) -> Row:
    """The same row, its names shared with all others: a parser makes new ones in each line."""
    return {sys.intern(name): value for name, value in row.items()}


class _Read(NamedTuple):
    """What was read of a log, and up to where."""

    start: int  # the first byte that was not read yet
    end: bytes  # the last bytes before `start`
    rows: dict[str, list[Row]]  # the few rows that are kept of each trial


class Followed:
    """The logs of a search, read again and again while they grow: each byte once, and few of their rows are kept.

    A search's status needs of a trial the first round at each rung, the last with test metrics, the last that was
    trained, and the last.
    """

    def __init__(self, run: Path, attribute: str, rungs: Sequence[float]) -> None:
        """attribute: the entry of a result with the used budget, which the rungs are of."""
        self._run, self._attribute, self._rungs = run, attribute, rungs
        self._files: dict[Path, _Read] = {}

    def rows(self) -> dict[str, list[Row]]:
        """The kept rows of every trial, in order."""
        files = sorted(self._run.glob("*/result.json"))
        self._files = {file: self._read(file) for file in files}
        results: dict[str, list[Row]] = {}
        for read in self._files.values():
            for trial, rows in read.rows.items():
                results.setdefault(trial, []).extend(rows)
        return results

    def _read(self, file: Path) -> _Read:
        log = self._files.get(file, _Read(0, b"", {}))
        if not file.is_file():
            return log
        try:
            size = file.stat().st_size
            if size == log.start:
                return log
            if size < log.start or _end(file, log.start) != log.end:
                log = _Read(0, b"", {})  # population based training writes a trial's log anew
            new, start = reading.new_rows(file, log.start)
            rows = {trial: list(old_rows) for trial, old_rows in log.rows.items()}
            for row in new:
                rows.setdefault(row["trial_id"], []).append(row)
            return _Read(start, _end(file, start), {trial: self._few(old_rows) for trial, old_rows in rows.items()})
        except OSError:
            return log  # it vanished

    def _few(self, rows: list[Row]) -> list[Row]:
        trained = [i for i, row in enumerate(rows) if not row.get("diverged")]
        numbers = {len(rows) - 1, *trained[-1:], *[i for i in trained if "test_acc" in rows[i]][-1:]}
        for rung in self._rungs:
            numbers |= {*[i for i in trained if rows[i].get(self._attribute, 0) >= rung][:1]}
        return [_compact(rows[i]) for i in sorted(numbers)]


def _end(file: Path, start: int) -> bytes:
    """The bytes before this place."""
    with file.open("rb") as opened:
        opened.seek(max(0, start - END), os.SEEK_SET)
        return opened.read(min(start, END))


def suggestions(run: Path) -> list[dict[str, Any]]:
    """The suggestions of a run in order: trial and config.  One repeated after a resume counts once."""
    by_trial = {
        row["trial"]: {"trial": row["trial"], "config": row["config"]}
        for row in reading.suggestions(RunFiles(run).suggestions_file)
    }
    return list(by_trial.values())


def metric_history(
    logged: dict[str, list[dict[str, Any]]], attribute: str, metric: str
) -> list[tuple[str, float, float]]:
    """Trial, used budget and metric (entries of a result) of every logged round, in order of time.

    The order matters, because of equal values at a rung the earlier one ranks higher.
    """
    needed = {metric, attribute, "timestamp"}
    rows = [r for results in logged.values() for r in results if needed <= r.keys() and not r.get("diverged")]
    rows.sort(key=lambda r: r["timestamp"])
    return [(r["trial_id"], r[attribute], r[metric]) for r in rows]
