"""Short runs of a program, for its check: their rows, how they ended, and what they wrote."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core.errors import Diverged, UserError
from fedtune.programs import idle, touched
from fedtune.programs.program_file import Program
from fedtune.programs.rows import Figure
from fedtune.programs.run import ProgramRun, Stopped
from fedtune.programs.touched import Touched

ERRORS = (UserError, Diverged, Stopped)
TIMES = ("seconds", "eval_seconds")


class Trial(NamedTuple):
    """What a short run gave."""

    rows: list[dict[str, Any]]
    seconds: float
    error: Exception | None
    written: set[Path]  # files outside its own folder
    first_figures: list[Figure]  # of each metric

    @property
    def figures(self) -> tuple[list[dict[str, str]], str]:
        """What is equal for equal runs: the figures of all rounds, and the error that ended them, if any did."""
        rows = [{name: repr(value) for name, value in row.items() if name not in TIMES} for row in self.rows]
        return rows, type(self.error).__name__

    @property
    def gaps(self) -> list[float]:
        """The seconds between its rows."""
        return [row["seconds"] for row in self.rows[1:]]


class ShortRuns:
    """Runs of a few rounds, one after the other, each in a folder of its own."""

    def __init__(self, rounds: int, pinned: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        """tell: is told what runs."""
        self.rounds = rounds
        self.looked_at_all = True  # no file was left out because there are too many
        self._pinned, self._tell, self._number = pinned, tell, 0

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """The folder that all are in, as long as the block runs."""
        with tempfile.TemporaryDirectory(prefix="fedtune-", ignore_cleanup_errors=True) as root:
            self._root = Path(root).resolve()
            try:
                yield self._root
            finally:
                idle.close()

    def short(self, program: Program) -> Program:
        """The program with few rounds if it is given their number; otherwise it is closed after as many."""
        return replace(program, rounds=self.rounds) if program.told_rounds else program

    def new(self, what: str, program: Program, config: Mapping[str, Any] | None = None, seed: int = 0) -> ProgramRun:
        """A run that has not started."""
        self._number += 1
        self._tell(f"run {self._number}: {what}")
        values = {**(config or {}), **self._pinned}
        return ProgramRun(
            program=program,
            config=values,
            seed=seed,
            folder=self._root / f"check-{self._number}",
            selects=program.selectable(),
        )

    def run(self, what: str, program: Program, config: Mapping[str, Any] | None = None, seed: int = 0) -> Trial:
        """A run's first rows."""
        return self.rows(self.new(what, program, config, seed))

    def rows(self, run: ProgramRun) -> Trial:
        """The rows of a run up to the last that is wanted; it is closed after that."""
        rows, error = [], None
        with Touched(touched.folders(run.program), self._root, lambda: run.processes) as writes:
            began = time.monotonic()
            try:
                while run.round < self.rounds:
                    rows.append(run.step())
            except ERRORS as found:
                error = found
            finally:
                seconds = time.monotonic() - began
                run.close()
        self.looked_at_all &= writes.whole
        return Trial(rows, seconds, error, writes.found, run.first_figures)
