"""A program in training: a child process whose rows come round by round (`fedtune.core.workload.Run`)."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.core.errors import Diverged, UserError
from fedtune.core.terminal import several
from fedtune.core.workload import Run
from fedtune.programs import command, config_files, fingerprint, flower, isolation, output, written_files
from fedtune.programs.child import Child
from fedtune.programs.program_file import Program
from fedtune.programs.report import ROWS
from fedtune.programs.rows import Figure, RowMaker

LOG, REPORTED, CHECKPOINT, COPY, STATE = "output.log", "rows.jsonl", "checkpoint", "copy", "program.json"
CLAIMS = 6.0  # seconds to wait for a folder that another run has
TRIAL = "FEDTUNE_TRIAL"
Event = tuple[int, dict[str, float], float]  # a row: its round, its values, and when it came
LOOK = 0.03  # seconds between two looks at files
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# signals from outside: whoever is short of memory, or stops a machine.  A shell reports one as 128 more.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stopped(ChildProcessError):
    """A program was ended from outside: the same trial may succeed another time."""


class ProgramRun(Run):
    """A trial of a program.  Its process begins with the first step, and has a folder of its own for what it leaves."""

    def __init__(
        self,
        *,
        program: Program,
        config: Mapping[str, Any],
        seed: int,
        folder: Path,
        gpus: Sequence[str] = (),
        gpu_share: float | None = None,
        threads: int = 1,
        trial: str = "",
        selects: Collection[str] | None = None,
    ) -> None:
        """UserError for a configuration that the program does not take.

        folder      the trial's own, for output and checkpoints
        gpus        the machine's numbers of the GPUs that the trial has, and its share of them
        threads     that the program should compute with
        trial       a name that no other trial has, and the same when it begins again; default: after the folder
        selects     the metrics that diverge if they are not finite; default: those that a search may select by
        """
        self.program, self.config, self.seed = program, program.configuration(config), seed
        self.folder, self._trial = folder.resolve(), trial
        self._claim = 0  # the open folder, which no other run has
        self.differs = ""  # how a repeated run differs from what it was before; "" if it does not
        self.notes: list[str] = []
        self._gpus, self._share, self._threads = [str(gpu) for gpu in gpus], gpu_share, threads
        self._selects = program.selectable() if selects is None else selects
        self._every = program.every
        self._done = 0
        self._row: dict[str, Any] = {}
        self._before: list[dict[str, float]] = []  # rows of the rounds before it was saved and loaded
        self._child: Child | None = None
        self._rows: RowMaker | None = None  # of the program that runs now, or ran last
        self._events: deque[Event | Exception] = deque()  # what it printed and wrote, and nobody has asked for yet
        self._looks: list[Callable[[bool], bool]] = []  # at files that it writes
        self._looked = 0.0
        self._resumes = False  # goes on from a checkpoint, and has not reported a round since
        self._of_another = False  # that checkpoint is of a run with other values
        self._last = 0.0  # when the last row came

    @property
    def round(self) -> int:
        """The rounds that are done."""
        return self._done

    @property
    def rounds(self) -> int:
        """The rounds of a whole run."""
        return self.program.rounds

    @property
    def trial(self) -> str:
        """The run's name, which no other has at the same time."""
        return self._trial or f"{self.folder.name}-{hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]}"

    @property
    def _command(self) -> list[str]:
        return fingerprint.portable(self.program.command)

    @property
    def last_line(self) -> str:
        """The last line that the program printed."""
        return output.last_line(self.folder / LOG)

    @property
    def first_figures(self) -> list[Figure]:
        """The first figure of each metric, as the program that runs now has given it."""
        return [*self._rows.first.values()] if self._rows else []

    def step(self) -> dict[str, Any]:
        """The next report's row; the program starts with the first.  After the last round it has ended."""
        if self._done >= self.rounds:
            raise UserError(f"{self.program.name} has {several(self.rounds, 'round')}, and all are done")
        try:
            number, values, at = self._next_row()
            if number == self.rounds:
                self._wait_for_end()
        except BaseException:
            self.close()
            raise
        seconds, self._last = at - self._last, at
        self._done = number
        self._before.append(values)
        self._row = {"round": number, "seconds": seconds, "eval_seconds": 0.0} | values
        return dict(self._row)

    def test(self) -> dict[str, Any]:
        """The last round's row: a program's test metrics come with it."""
        return dict(self._row)

    def take_notes(self) -> list[str]:
        """What is worth telling since it was last asked."""
        found, self.notes = self.notes, []
        return found

    def save(self, folder: Path) -> None:
        """The rows until now, and the program's checkpoint if it has any; the program waits meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {"config": self.config, "seed": self.seed, "command": self._command, "rows": self._before}
        state["round"] = self._done
        if self.program.uses("checkpoint") and (self.folder / CHECKPOINT).is_dir():
            if self._child is not None:
                self._child.pause()
            try:
                shutil.copytree(self.folder / CHECKPOINT, folder / CHECKPOINT, symlinks=True, dirs_exist_ok=True)
            finally:
                if self._child is not None:
                    self._child.go_on()
        (folder / STATE).write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Continue after the round in which it was saved: from its checkpoint, or silently from the beginning."""
        self.close()
        self._claim_folder()
        try:
            state = json.loads((folder / STATE).read_text())
            rows = [{str(n): float(v) for n, v in row.items()} for row in state["rows"]]
            reached = state.get("round", len(rows))
            state["config"], state["seed"], state["command"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / STATE} is no state of a program: {error}") from None
        same = state["config"] == json.loads(json.dumps(self.config))
        own = (state["seed"], state["command"]) == (self.seed, self._command) and reached == len(rows) * self._every
        if not own or not (same or self.program.uses("checkpoint")):  # only a checkpoint can go on with other values
            raise ValueError(f"{folder / STATE} belongs to another run: {state['config']}, seed {state['seed']}")
        self._of_another = not same
        self._before, self._done = rows, len(rows) * self._every
        self._row = {"round": self._done, "seconds": 0.0, "eval_seconds": 0.0} | rows[-1] if rows else {}
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

    def _next_row(self) -> tuple[int, dict[str, float], float]:
        """The next row that was not there before the run was loaded, with the time when it came."""
        while True:
            if self._child is None:
                self._start()
            try:
                number, values, at = self._wait()
                if self._resumes and number > self._done + self._every:
                    raise UserError(f"round {self._done + self._every} is missing")
            except (UserError, Diverged) as error:
                if not self._resumes or self._of_another:
                    raise
                self._begin_again(str(error).split("\n")[0])
                continue
            self._resumes = False
            if number > self._done:
                return number, values, at
            self._compare(number, values)
            self._last = at

    def _begin_again(self, why: str) -> None:
        """Without the checkpoint, which led nowhere."""
        self._note(f"did not go on from its checkpoint and begins again: {why}")
        self.close()
        self._resumes = False

    def _compare(self, number: int, values: Mapping[str, float]) -> None:
        """Note the first figure that differs from the one of the same round before."""
        for name, value in values.items():
            before = self._before[number // self._every - 1].get(name, math.nan)
            if not self.differs and not (value == before or (math.isnan(value) and math.isnan(before))):
                self.differs = f"round {number} again: {name} was {before:.12g}, and is now {value:.12g}"
                self._note(f"gives other figures each time: {self.differs}")

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
        known = {name: glob.escape(command.text(value)) for name, value in values.items()}
        template = re.sub(r"[\[?]", r"[\g<0>]", self.program.file or "")  # only * and ** stand for others
        named = command.fill([template], known)[0] if template else ""
        written = os.path.join(glob.escape(str(place)), named) if named else None
        self._rows = self._row_maker(written)
        self._last = time.monotonic()
        words = [*self.program.command, *(self.program.resume_arguments if self._resumes else ())]
        self._child = Child(
            command=command.fill(words, values),
            folder=place,
            environment=self._environment(values),
            log=self.folder / LOG,
            pty=self.program.pty,
            holds=(self._claim,),
        )

    def _row_maker(self, written: str | None) -> RowMaker:
        """What makes rows of what the program prints and writes from now on."""
        rows = RowMaker(self.program, self._selects, lambda *row: self._events.append((*row, time.monotonic())))
        rows.begins_anywhere = self._resumes
        self._events.clear()
        self._looks = written_files.looks(rows, self.folder / REPORTED, written)
        return rows

    def _values(self) -> dict[str, Any]:
        """What names in braces stand for."""
        numbers = self._gpus if self.program.gpu == "machine" else range(len(self._gpus))
        return self.config | {
            "rounds": self.rounds,
            "seed": self.seed,
            "gpu": ",".join(map(str, numbers)) or "0",
            "trial": self.trial,
            "folder": str(self.folder),
            "checkpoint": str(self.folder / CHECKPOINT),
        }

    def _environment(self, values: Mapping[str, Any]) -> dict[str, str]:
        """This process's environment without Ray's own variables; what the program needs; what its file says."""
        found = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        if found.get("PYTHONBREAKPOINT", "").startswith("ray."):
            del found["PYTHONBREAKPOINT"]
        found |= {"PYTHONUNBUFFERED": "1", TRIAL: self.trial, ROWS: str(self.folder / REPORTED)}
        found = {name: str(self._threads) for name in THREADS} | found
        found["FEDTUNE_CPUS"] = str(self._threads)
        if self._gpus and self.program.gpu == "machine":
            found.pop("CUDA_VISIBLE_DEVICES", None)
        elif self._gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus)
        if self._share is not None:
            found["FEDTUNE_GPU_SHARE"] = f"{self._share:g}"
        if self.program.seed not in ("none", "{seed}"):
            found[self.program.seed] = str(self.seed)
        given = self.program.environment
        return found | {name: (command.fill([text], values) or [""])[0] for name, text in given.items()}

    def _wait(self) -> Event:
        """The next row from the program; an error if it ended, is silent for too long, or says what cannot be."""
        event = self._event("must print something")
        if event is None:
            raise self._ended()
        return event

    def _wait_for_end(self) -> None:
        """After the last round: the program ends, and says nothing that contradicts its rows.

        All figures are there, so they count however it ends; but a line tells what went wrong.
        """
        self._event("must end after its last round")
        assert self._child
        if (status := self._child.exit_status) != 0:
            self._note(f"{_how(status)} after its last round; its figures count{self._raised()}")
        elif error := self._raised():
            self._note(f"ended with status 0, but printed a traceback{error}")
        self.close()

    def _note(self, says: str) -> None:
        self.notes.append(f"{self.program.name} {says}")

    def _raised(self) -> str:
        """The error of a traceback that it printed, after a colon."""
        error = output.traceback(self.folder / LOG)
        return f": {error}" if error else ""

    def _event(self, rule: str) -> Event | None:
        """The next row, or None when the program has ended; raises what was wrong in its output."""
        assert self._child
        child, began, longest = self._child, time.monotonic(), self.program.longest_round * self._every

        def left() -> float:
            return min(child.heard + self.program.stall, began + longest) - time.monotonic()

        while not self._events:
            ended = child.ended
            self._take(child, left())
            if ended and not self._events:
                return None
            if left() < 0 and not (self._events or child.ended):
                raise self._too_long(child, rule)
        event = self._events.popleft()
        if isinstance(event, Exception):
            raise self._failed(f"{self.program.name}: {event}") if isinstance(event, UserError) else event
        return event

    def _take(self, child: Child, seconds: float) -> None:
        """Make rows of what the program prints and writes; if there is nothing new, wait for some seconds."""
        assert self._rows
        try:
            for line in child.lines(min(seconds, LOOK) if self._looks else seconds):
                self._rows.line(line)
            if child.ended or time.monotonic() > self._looked + LOOK:
                for look in self._looks:
                    if look(child.exit_status == 0 and child.ended):
                        child.heard = time.monotonic()
                self._looked = time.monotonic()
        except Exception as error:
            self._events.append(error)

    def _too_long(self, child: Child, rule: str) -> UserError:
        name, p = self.program.name, self.program
        if time.monotonic() - child.heard >= p.stall:
            why = f"{rule}, but was silent for {p.stall:g} seconds{self._lacks()}"
            return self._failed(f"{name} {why}; give a larger `stall`, or pty = true if it waits for a terminal")
        each = f" for each of {self._every}" * (self._every > 1)
        rule = rule.replace("print something", "finish a round")
        why = f"{rule}, but did not within {p.longest_round:g} seconds{each}{self._lacks()}"
        return self._failed(f"{name} {why}; give a larger `longest_round`")

    def _ended(self) -> Exception:
        """The error for a program that ended before its last round."""
        assert self._child and self._rows
        name, status = self.program.name, self._child.exit_status
        if self._child.failure:
            said = os.strerror(self._child.failure)
            return UserError(f"{name} could not be started: {said}: {self.program.command[0]!r}")
        if status is None or _number(status) in FROM_OUTSIDE:
            why = "; the machine may be out of memory" if status is None or _number(status) == signal.SIGKILL else ""
            return Stopped(f"{name} {_how(status)} in round {self._rows.round + 1}{why}")
        if status:
            return self._failed(f"{name} {_how(status)} {self._after()}{self._raised()}")
        advice = self._other_length(self._rows.round) if self._rows.round else self._rows.advice()
        if flower.is_app(self.program) and not self._rows.round:
            advice = "name a metric that the app's clients or its server report, client:NAME or server:NAME"
        if error := self._raised():
            advice = f"it printed a traceback{error}"
        return self._failed(f"{name} must report {several(self.rounds, 'round')}, but ended {self._after()}; {advice}")

    def _other_length(self, came: int) -> str:
        """What may be wrong if too few rounds came."""
        if self._every > 1 or self._resumes or came == self.rounds:
            return "correct `rounds`, or what it prints"
        each = self.rounds // came if came > 1 and self.rounds % came == 0 else "N"
        return f"correct `rounds`, or what it prints, or write report_every = {each} if a report is of several rounds"

    def _after(self) -> str:
        return f"after {several(self._rows.round if self._rows else 0, 'round')}{self._lacks()}"

    def _lacks(self) -> str:
        """What did not come of the round that is not complete."""
        rows = self._rows
        if not rows or rows.round >= self.rounds:
            return ""
        others = f" (it reported {', '.join([*rows.others][:5])})" if rows.others else ""
        return f", without {', '.join(rows.missing)} of the next{others}"

    def _failed(self, sentence: str) -> UserError:
        """An error with the last lines of output after its first sentence."""
        lines = output.last_lines(self.folder / LOG)
        if not lines:
            return UserError(f"{sentence}; it printed nothing")
        return UserError("\n".join([sentence, *(f"  {line}" for line in lines)]))


def _how(status: int | None) -> str:
    """How a program ended that did not end well."""
    number = _number(status or 0)
    if status is None or number in FROM_OUTSIDE:
        return "was ended" + f" by {_name(number)}" * bool(number)
    return f"failed with signal {_name(number)}" if status < 0 else f"failed with status {status}"


def _name(number: int) -> str:
    """A signal's name; those of real time have none of their own."""
    return signal.Signals(number).name if number in [*signal.Signals] else str(number)


def _number(status: int) -> int:
    """The signal that an exit status tells, as the system or a shell has it; 0 for none."""
    return -status if status < 0 else status - 128 if 128 < status < 160 else 0
