"""The logs of a search: every trial's results, logged by Ray, and every suggestion, logged by the searcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtune.runs import reading
from fedtune.runs.files import RunFiles

Row = dict[str, Any]


def logged(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of every trial, from Tune's logs; a line that was truncated when its writer died is skipped."""
    results: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(run.glob("*/result.json")):
        for row in reading.lines(file):
            results.setdefault(row["trial_id"], []).append(_compact(row))
    return results


def _compact(row: Row) -> Row:
    """The same row, its names shared with all others: a parser makes new ones in each line."""
    return {sys.intern(name): value for name, value in row.items()}


class Followed:
    """The logs of a search, read again and again while they grow: only those that changed, and few rows are kept.

    A search's status needs of a trial the first round at each rung, the last with test metrics, the last that was
    trained, and the last.
    """

    def __init__(self, run: Path) -> None:
        """Nothing has been read."""
        self._run, self._files = run, dict[Path, tuple[Any, list[Row]]]()  # what decides about the rows, and these

    def rows(self, attribute: str, rungs: Sequence[float]) -> dict[str, list[Row]]:
        """The kept rows of every trial, in order.  attribute: of a result, the used budget, which the rungs are of."""
        results: dict[str, list[Row]] = {}
        for file in sorted(self._run.glob("*/result.json")):
            with suppress(OSError):  # it vanished: a search that goes on moves logs to `lost`
                version = (stat := file.stat()).st_size, stat.st_mtime_ns, attribute, *rungs
                if self._files.get(file, ((), []))[0] != version:
                    self._files[file] = version, _few(reading.new_rows(file, 0)[0], attribute, rungs)
            for row in self._files.get(file, ((), []))[1]:
                results.setdefault(row["trial_id"], []).append(row)
        return results


def _few(rows: list[Row], attribute: str, rungs: Sequence[float]) -> list[Row]:
    trained = [i for i, row in enumerate(rows) if not row.get("diverged")]
    numbers = {*range(len(rows))[-1:], *trained[-1:], *[i for i in trained if "test_acc" in rows[i]][-1:]}
    for rung in rungs:
        numbers |= {*[i for i in trained if rows[i].get(attribute, 0) >= rung][:1]}
    return [_compact(rows[i]) for i in sorted(numbers)]


def suggestions(run: Path) -> list[dict[str, Any]]:
    """The suggestions of a run in order: trial and config.  One repeated after a resume counts once."""
    by_trial = {
        row["trial"]: {"trial": row["trial"], "config": row["config"]}
        for row in reading.lines(RunFiles(run).suggestions_file)
    }
    return list(by_trial.values())


def metric_history(logged: dict[str, list[Row]], *needed: str) -> list[Row]:
    """Every logged round that has these entries, in order of time, without those of diverged trials.

    The order matters, because of equal values at a rung the earlier one ranks higher.
    """
    rows = [r for results in logged.values() for r in results if {*needed, "timestamp"} <= r.keys()]
    return sorted((r for r in rows if not r.get("diverged")), key=lambda r: r["timestamp"])
