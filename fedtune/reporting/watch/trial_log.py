"""A trial's log, as far as the study has one: its rounds, configuration, error, and what its program printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.metrics import TRAFFIC, metrics_in
from fedtune.core.terminal import short
from fedtune.programs.output import last_lines
from fedtune.programs.run import LOG
from fedtune.runs import reading
from fedtune.runs.files import RunFiles

ROUNDS = 200  # the last ones, which are shown
TAIL = 2**20  # bytes at the end of a log, in which these are looked for
FIRST = ("val_", "test_", "train_")  # prefixes of the metrics that are shown first
LINES = 300  # of an output, which are shown
RESULTS, ERROR = "result.json", "error.txt"  # Tune's names


class TrialLog(NamedTuple):
    """What is known of a trial."""

    trial: str
    config: list[tuple[str, str]]
    reason: str
    columns: list[str]
    rounds: list[list[str]]  # the last first
    left_out: int  # earlier rounds
    texts: list[tuple[str, list[str]]]  # an output's or error's name and its last lines


def folders(run: Path) -> dict[str, Path]:
    """The folder of each trial of a search, by the trial."""
    return {
        folder.name.rpartition("-")[2]: folder
        for folder in sorted(run.glob("*-*"))
        if (folder / RESULTS).exists() or (folder / "params.json").exists()
    }


def read(run: Path, trial: str) -> TrialLog:
    """The log of a trial; KeyError if the search has no folder of it."""
    folder = folders(run)[trial]
    rows = _rows(folder / RESULTS, run)
    last = rows[-1] if rows else {}
    figures = [metrics_in(row) for row in rows]
    every = dict.fromkeys(name for row in figures for name in row if name != "round")
    names = sorted(every, key=lambda name: (not name.startswith(FIRST), name in TRAFFIC))  # else as they come
    lines = [
        [str(row.get("training_iteration", "")), *(short(of.get(name)) for name in names)]
        for row, of in zip(rows, figures, strict=True)
    ]
    before = int(rows[0]["training_iteration"]) - 1 if rows else 0
    return TrialLog(
        trial=trial,
        config=[(name, short(value)) for name, value in (last.get("config") or {}).items()],
        reason=str(last.get("reason") or ""),
        columns=["round", *names],
        rounds=lines[::-1],
        left_out=before,
        texts=list(_texts(run, folder, trial)),
    )


def _rows(file: Path, run: Path) -> list[dict[str, Any]]:
    if not _inside(file, run):
        return []
    start = max(0, file.stat().st_size - TAIL)  # a line that is cut by it is no row
    return reading.new_rows(file, start)[0][-ROUNDS:]


def _texts(run: Path, folder: Path, trial: str) -> Iterator[tuple[str, list[str]]]:
    outputs = sorted(RunFiles(run).outputs_folder.glob(f"{trial}*/{LOG}"))
    for file in (folder / ERROR, *(file for file in outputs if file.parent.name.startswith(trial))):
        if _inside(file, run) and (lines := last_lines(file, LINES)):
            yield str(file.relative_to(run)), lines


def _inside(file: Path, run: Path) -> bool:
    return file.is_file() and file.resolve().is_relative_to(run.resolve())
