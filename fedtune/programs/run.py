"""A program in training: a child process whose rows come round by round (`fedtune.core.workload.Run`)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedtune.core.errors import Diverged, UserError
from fedtune.core.terminal import few, several
from fedtune.core.workload import HERE, Config, Place, Run
from fedtune.programs import command, config_files, fingerprint, flower, isolation, output, written_files
from fedtune.programs.child import Child
from fedtune.programs.flower_child import CPUS, GPU_SHARE, THREADS
from fedtune.programs.program_file import Program
from fedtune.programs.report import ROWS
from fedtune.programs.rows import RowMaker

LOG, REPORTED, CHECKPOINT, COPY, STATE = "output.log", "rows.jsonl", "checkpoint", "copy", "program.json"
CLAIMS = 6.0  # seconds to wait for a folder that another run has
Row = tuple[int, dict[str, float], float]  # its round, its values, and when it came
LOOK = 0.03  # seconds between two looks at files
# signals from outside: whoever is short of memory, or stops a machine.  A shell reports one as 128 more.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stopped(ChildProcessError):
    """A program was ended from outside: the same trial may succeed another time."""


class ProgramRun(Run):
    """A trial of a program.  Its process begins with the first step, and has a folder of its own for what it leaves."""

    def __init__(
        self, program: Program, config: Config, seed: int, folder: Path, *, at: Place = HERE, test: bool = False
    ) -> None:
        """UserError for a configuration that the program does not take.

        folder: the trial's own, for output and checkpoints; test: metrics of test rows may select
        """
        self.program, self.config, self.seed = program, program.configuration(config), seed
        self.folder, self._at = folder.resolve(), at
        self._claim = 0  # the open folder, which no other run has
        self.notes: list[str] = []
        self.rows: RowMaker | None = None  # of the program that runs now, or ran last
        self._selects = program.selectable(test)
        self._every, self._command = program.every, fingerprint.portable(program.command)
        self._row: dict[str, Any] = {}  # the last
        self._rows: list[dict[str, float]] = []  # of the rounds that are done, also of those before it was loaded
        self._differs = False  # a round that was repeated gave other figures
        self._child: Child | None = None
        self._coming: Iterator[Row] = iter(())  # its rows that nobody has asked for yet
        self._resumes = False  # goes on from a checkpoint, and has not reported a round since
        self._of_another = False  # that checkpoint is of a run with other values
        self._last = 0.0  # when the last row came

    @property
    def round(self) -> int:
        """The rounds that are done."""
        return len(self._rows) * self._every

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.program.rounds

    @property
    def trial(self) -> str:
        """The run's name, which no other has at the same time: after its folder."""
        return f"{self.folder.name}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]}"

    def step(self) -> dict[str, Any]:
        """The next report's row; the program starts with the first.  After the last round it has ended."""
        if self.round >= self.rounds:
            raise UserError(f"{self.program.name} has {several(self.rounds, 'round')}, and all are done")
        try:
            number, values, at = self._next_row()
            if number == self.rounds:
                self._wait_for_end()
        except BaseException:
            self.close()
            raise
        self._row = {"round": number, "seconds": at - self._last, "eval_seconds": 0.0} | values
        self._last = at
        self._rows.append(values)
        return dict(self._row)

    def test(self) -> dict[str, Any]:
        """The last round's row: a program's test metrics come with it."""
        return dict(self._row)

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        notes, self.notes = self.notes, []
        return notes

    def save(self, folder: Path) -> None:
        """The rows until now, and the program's checkpoint if it has any; the program waits meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"config": self.config, "seed": self.seed, "command": self._command, "rows": self._rows}
        if self.program.uses("checkpoint") and (self.folder / CHECKPOINT).is_dir():
            with self._child.paused() if self._child else nullcontext():
                shutil.copytree(self.folder / CHECKPOINT, folder / CHECKPOINT, symlinks=True, dirs_exist_ok=True)
        (folder / STATE).write_text(json.dumps(state | {"round": self.round}))

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved: from its checkpoint, or silently from the beginning."""
        self.close()
        self._claim_folder()
        try:
            state = json.loads((folder / STATE).read_text())
            rows, reached = state["rows"], state["round"]
            same = state["config"] == json.loads(json.dumps(self.config))
            own = (state["seed"], state["command"]) == (self.seed, self._command)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / STATE} is no state of a program: {error}") from None
        # only a checkpoint can go on with other values
        if not own or reached != len(rows) * self._every or not (same or self.program.uses("checkpoint")):
            raise ValueError(f"{folder / STATE} belongs to another run: {state['config']}, seed {state['seed']}")
        self._of_another = not same
        self._rows = rows
        self._row = {"round": reached, "seconds": 0.0, "eval_seconds": 0.0} | rows[-1] if rows else {}
        shutil.rmtree(self.folder / CHECKPOINT, ignore_errors=True)
        self._resumes = (folder / CHECKPOINT).is_dir() and any((folder / CHECKPOINT).iterdir())
        if self._resumes:
            shutil.copytree(folder / CHECKPOINT, self.folder / CHECKPOINT, symlinks=True)

    def close(self) -> None:
        """End the program and all that it started."""
        child, self._child = self._child, None
        if child:
            child.close()
        if self._claim:
            shutil.rmtree(self.folder / COPY, ignore_errors=True)
            claim, self._claim = self._claim, 0
            os.close(claim)

    def _claim_folder(self) -> None:
        """Take the folder, or one beside it if another run has it: two would write the same files.

        A run that was killed has it until its last process is gone.
        """
        first, end, others = self.folder, time.monotonic() + CLAIMS, itertools.count(2)
        while not self._claim:
            self._claim = isolation.claimed(self.folder)
            if not self._claim and time.monotonic() > end:
                self.folder = first.with_name(f"{first.name}-{next(others)}")
            elif not self._claim:
                time.sleep(0.05)

    def _next_row(self) -> Row:
        """The next row that was not there before the run was loaded."""
        while True:
            try:
                if not self._child:
                    self._start()
                if (row := next(self._coming, None)) is None:
                    raise self._ended()
                if self._resumes and row[0] > self.round + self._every:
                    raise UserError(f"round {self.round + self._every} is missing")
            except (UserError, Diverged) as error:
                if not self._resumes or self._of_another:
                    raise
                first, *_ = str(error).split("\n")
                self._note(f"did not go on from its checkpoint and begins again: {first}")
                self.close()
                self._resumes = False
                continue
            self._resumes = False
            if row[0] > self.round:
                return row
            self._compare(*row)

    def _compare(self, number: int, values: Mapping[str, float], at: float) -> None:
        """Note the first figure that differs from the one of the same round before."""
        self._last = at
        for name, value in values.items():
            before = self._rows[number // self._every - 1].get(name, math.nan)
            if not self._differs and not (value == before or (math.isnan(value) and math.isnan(before))):
                self._differs, again = True, f"round {number} again: {name} was {before:.12g}, and is now {value:.12g}"
                self._note(f"gives other figures each time: {again}")

    def _start(self) -> None:
        self._claim_folder()
        if not self._resumes:  # what another attempt left must not be taken for this one's
            shutil.rmtree(self.folder / CHECKPOINT, ignore_errors=True)
        (self.folder / CHECKPOINT).mkdir(parents=True, exist_ok=True)
        (self.folder / REPORTED).unlink(missing_ok=True)
        place = Path(self.program.folder)
        if not place.is_dir():
            raise UserError(f"{self.program.name} must run in a folder of this machine, but there is none at {place}")
        if self.program.isolate:
            place = isolation.copy(place, self.folder / COPY)
        values = self._values()
        config_files.write(self.program.write, place, values)
        self.rows = RowMaker(self.program, self._selects)
        self.rows.begins_anywhere = self._resumes
        looks = written_files.looks(self.rows, self.folder / REPORTED, place, values)
        self._last = time.monotonic()
        words = [*self.program.command, *(self.program.resume_arguments if self._resumes else ())]
        filled, own = command.fill(words, values), self._environment(values)
        self._child = Child(filled, place, own, log=self.folder / LOG, pty=self.program.pty, hold=self._claim)
        self._coming = self._play(self._child, self.rows, looks)

    def _values(self) -> dict[str, Any]:
        gpus = self._at.gpu_ids
        numbers = gpus if self.program.gpu == "machine" else map(str, range(len(gpus)))
        own = {"rounds": self.rounds, "seed": self.seed, "gpu": ",".join(numbers) or "0", "trial": self.trial}
        return self.config | own | {"folder": str(self.folder), "checkpoint": str(self.folder / CHECKPOINT)}

    def _environment(self, values: Mapping[str, Any]) -> dict[str, str]:
        """This process's environment without Ray's own variables; what the program needs; what its file says."""
        cpus, gpus = str(max(1, int(self._at.cpus))), self._at.gpu_ids
        found = dict.fromkeys(THREADS, cpus)
        found |= {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        found |= {"PYTHONUNBUFFERED": "1", "FEDTUNE_TRIAL": self.trial, ROWS: str(self.folder / REPORTED), CPUS: cpus}
        if gpus and self.program.gpu == "machine":
            found.pop("CUDA_VISIBLE_DEVICES", None)
        elif gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        if self._at.gpus:
            found[GPU_SHARE] = f"{self._at.gpus:g}"
        if self.program.seed not in ("none", "{seed}"):
            found[self.program.seed] = str(self.seed)
        return found | {name: command.filled(text, values) for name, text in self.program.environment.items()}

    def _play(self, child: Child, rows: RowMaker, looks: Sequence[Callable[[bool], bool]]) -> Iterator[Row]:
        """The program's rows as they come, until it has ended; an error if it takes too long, or says what is wrong."""
        began, looked, ended, error = time.monotonic(), 0.0, False, None
        while not ended:
            stall, longest = self.program.stall, self.program.longest_round * self._every
            left, ended = min(child.heard + stall, began + longest) - time.monotonic(), child.ended
            try:
                for line in child.lines(min(left, LOOK) if looks else left):
                    rows.line(line)
                if child.ended or time.monotonic() > looked + LOOK:
                    looked, well = time.monotonic(), child.ended and child.exit_status == 0
                    child.heard = looked if any([look(well) for look in looks]) else child.heard
            except Exception as found:  # rows before it count
                error = found
            came = bool(rows.complete)
            while rows.complete:
                yield (*rows.complete.pop(0), child.heard)
            if error:
                raise self._failed(f": {error}") if isinstance(error, UserError) else error
            if came:  # and perhaps long ago: whoever asks may have been away
                began = time.monotonic()
                continue
            if time.monotonic() > child.heard + stall and not child.ended:
                advice = "give a larger `stall`, or pty = true if it waits for a terminal"
                raise self._failed(f" was silent for {stall:g} seconds {self._after()}; {advice}")
            if time.monotonic() > began + longest and not child.ended:
                took = f"more than {longest:g} seconds for {several(self._every, 'round')} {self._after()}"
                raise self._failed(f" took {took}; give a larger `longest_round`")

    def _wait_for_end(self) -> None:
        """After the last round figures count however the program ends, but a note tells what went wrong."""
        assert self._child
        next(self._coming, None)
        if (status := self._child.exit_status) != 0:
            self._note(f"{_how(status)} after its last round; its figures count{self._raised()}")
        elif error := self._raised():
            self._note(f"ended with status 0, but printed a traceback{error}")
        self.close()

    def _note(self, says: str) -> None:
        self.notes.append(f"{self.program.name} {says}")

    def _raised(self) -> str:
        """The error of a traceback that it printed, after a colon."""
        return f": {error}" if (error := output.traceback(self.folder / LOG)) else ""

    def _ended(self) -> Exception:
        """The error for a program that ended before its last round."""
        assert self._child and self.rows
        status, done = self._child.exit_status, self.rows.round
        if status is None or _signal(status) in FROM_OUTSIDE:
            why = "; the machine may be out of memory" * (status is None or _signal(status) == signal.SIGKILL)
            return Stopped(f"{self.program.name} {_how(status)} in round {done + 1}{why}")
        if status:
            return self._failed(f" {_how(status)} {self._after()}{self._raised()}")
        advice = "correct `rounds`, or what it prints, or say by `report_every` how many rounds a report stands for"
        if error := self._raised():
            advice = f"it printed a traceback{error}"
        elif flower.is_app(self.program) and not done:
            advice = "name a metric that the app's clients or its server report, client:NAME or server:NAME"
        elif not done:
            advice = self.rows.advice()
        return self._failed(f" must report {several(self.rounds, 'round')}, but ended {self._after()}; {advice}")

    def _after(self) -> str:
        """After how many rounds, and what did not come of the round that is not complete."""
        assert self.rows
        after = f"after {several(self.rows.round, 'round')}"
        if self.rows.round >= self.rounds:
            return after
        others = f" (it reported {few([*self.rows.others])})" if self.rows.others else ""
        return f"{after}, without {', '.join(self.rows.missing)} of the next{others}"

    def _failed(self, says: str) -> UserError:
        lines = [f"  {line}" for line in output.last_lines(self.folder / LOG)]
        says = f"{self.program.name}{says}"
        return UserError("\n".join([says, *lines]) if lines else f"{says}; it printed nothing")


def _how(status: int | None) -> str:
    number = _signal(status or 0)
    name = signal.Signals(number).name if number in [*signal.Signals] else str(number)  # those of real time have none
    if status is None or number in FROM_OUTSIDE:
        return "was ended" + f" by {name}" * bool(number)
    return f"failed with signal {name}" if status < 0 else f"failed with status {status}"


def _signal(status: int) -> int:
    """The signal that an exit status tells, as the system or a shell has it; 0 for none."""
    return -status if status < 0 else status - 128 if 128 < status < 160 else 0
