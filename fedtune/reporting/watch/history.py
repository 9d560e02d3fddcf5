"""All runs in a storage path, or those that were given: their names in addresses, and a row for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.errors import UserError
from fedtune.core.objectives import Goal
from fedtune.core.terminal import few, near
from fedtune.runs import overview, reading
from fedtune.runs.files import COMPARISON, LEVELS, REPRODUCTION, RunFiles, kind_of, levels_of, require_kind
from fedtune.runs.overview import GONE, Reader, SearchStatus


class HistoryRow(NamedTuple):
    """A run's row in the history."""

    name: str  # in addresses
    state: str  # in a few words
    best: float | None = None
    metric: str = ""
    done: str = ""
    what: str = ""
    started: str = ""
    minutes: float | None = None


class StudyFolders:
    """The runs that a page may show, by their names in addresses.  Nothing else is ever opened."""

    def __init__(self, storage: Path, given: Sequence[Path] = ()) -> None:
        """given: folders of runs; without any, those in the storage path.  UserError if there is no run."""
        names = [run.absolute().name for run in given]
        before = [names[:i].count(name) for i, name in enumerate(names)]  # a further one of the same name is numbered
        numbered = [f"{name}-{n + 1}" if n else name for name, n in zip(names, before, strict=True)]
        self._storage, self._given = storage, dict(zip(numbered, given, strict=True))
        for run in given:
            require_kind(run, f"; {near(storage)} has {few([*_in(storage)])}" if _in(storage) else "")
        if not self.all():
            what = "does not exist" if not storage.is_dir() else "holds no run"
            raise UserError(f"nothing to watch: {near(storage)} {what} yet; start a search, or give --storage-path")

    def all(self) -> dict[str, Path]:
        """Name and folder of every run, as they are now."""
        return self._given or _in(self._storage)

    def folder(self, name: str) -> Path:
        """The folder of a run, or of a part of one (COMPARISON/SEARCH, STUDY/LEVEL); KeyError for any other name."""
        runs = self.all()
        if name in runs:
            return runs[name]
        outer, between, inner = name.rpartition("/")
        if not between:
            raise KeyError(name)
        run = self.folder(outer)
        if kind_of(run) != COMPARISON:
            return {level.name: level.path for level in levels_of(run)}[inner]
        record = RunFiles(run, COMPARISON).record_with("algorithms")
        return {folder.name: folder for folder in overview.inner_searches(run, record)}[inner]


def _in(storage: Path) -> dict[str, Path]:
    try:
        return {folder.name: folder for folder in sorted(storage.iterdir()) if folder.is_dir() and kind_of(folder)}
    except OSError:
        return {}


def rows(runs: StudyFolders, reader: Reader) -> Iterator[HistoryRow]:
    """The rows of all runs, in the order of the folders' names.  reader: of runs that go on."""
    for name, run in runs.all().items():
        try:
            yield _row(name, run, reader)
        except (UserError, OSError, KeyError, TypeError, ValueError) as error:  # a damaged folder hides no other
            yield HistoryRow(name, "damaged", what=" ".join(str(error).split())[:200])


def _row(name: str, run: Path, reader: Reader) -> HistoryRow:
    """A run's row.  Of a search that is over the record is enough, as its logs may be long or gone."""
    kind = kind_of(run) or COMPARISON
    files = RunFiles(run, kind)
    record, metric, best = files.record, "", None
    state = files.state_in(record)
    if kind == REPRODUCTION:
        what = f"reproduction of {record['grid'].get('table')}"
    elif kind in (COMPARISON, LEVELS):
        at = f" at {', '.join(record['levels'])}" if kind == LEVELS else ""
        what = f"comparison of {', '.join(reading.compared_in(record))}{_on_scenario(record)}{at}"
    else:
        what, metric = f"{record['algorithm']}{_on_scenario(record)}", Goal.from_record(record).first.name
    if metric and state not in ("running", "abandoned"):
        done = f"{sum(record.get('status', {}).values())} of {record['trials']} trials" if "trials" in record else ""
        best = _best_value(files, metric)
    else:
        status = reader.read(run)
        done = status.counted.partition(":")[0]
        if isinstance(status, SearchStatus) and status.best:
            best = status.best.value
    minutes = float(f"{record['seconds'] / 60:.3g}") if "seconds" in record else None
    started = record.get("started", "").replace("T", " ")[:16]
    state = GONE if state == "abandoned" else state
    return HistoryRow(
        name, state=state, best=best, metric=metric, done=done, what=what, started=started, minutes=minutes
    )


def _on_scenario(record: Mapping[str, Any]) -> str:
    if "program" in record:
        return " (a program)"
    name = record.get("scenario_name") or (record.get("scenario") or {}).get("dataset")
    return f" on {name}" if name else ""


def _best_value(files: RunFiles, metric: str) -> float | None:
    try:
        value = (reading.best(files.best_file).get("found") or {}).get(metric)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, int | float) and math.isfinite(value) else None
