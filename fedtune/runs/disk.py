"""The disk under a run's folder: a search ends in time when it is full or gone, and what was found stays readable."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.tune import Callback

from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, one_line, say
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import TROUBLE
from fedtune.user_code import user_errors

RESERVE = 4 * 2**20  # bytes kept for a search's last words: Ray's state, every trial's rounds, the tables
PROBE = 2**16  # bytes written to see whether any can be
DIED = "worker process has died"  # Ray's words
EVERY = 2.0  # seconds between looks


def require_room(storage: Path) -> None:
    """UserError unless the disk has room for a search to begin."""
    there = next(p for p in (storage, *storage.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < 2 * RESERVE:
        raise UserError(
            f"a search needs at least {_mb(2 * RESERVE)} on the disk of its folder, but {there} has {_mb(free)} left; "
            "make room, or give another --storage-path"
        )


@contextmanager
def reserved(run: Path) -> Iterator[None]:
    """Holds room on the run's disk with a file that is given up when the search ends, or when the disk is full."""
    held = RunFiles(run).reserve_file
    try:
        held.write_bytes(os.urandom(RESERVE))  # zeros would take no room where the disk packs them
        yield
    finally:
        _drop(held)


def unfit(run: Path) -> str:
    """What is wrong with a run's folder; empty if it is there and can be written to."""
    files = RunFiles(run)
    if not files.record_file.exists():
        return "is gone"
    probe = files.probe_file
    try:
        probe.write_bytes(os.urandom(PROBE))
        free = shutil.disk_usage(run).free
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "is on a full disk" if full else f"cannot be written to ({error.strerror})"
    finally:
        _drop(probe)
    return "" if free >= RESERVE else "is on a full disk"


class Watch(Callback):
    """Ends a search, as Ctrl-C does, once its folder is full or gone; says what went wrong in trials in a line each.

    Ray itself would go on: every trial fails at its next checkpoint, and what is copied to a full disk is cut to
    nothing.
    """

    def __init__(self, run: Path) -> None:
        """Watch the disk that holds this run's folder."""
        self.run, self.found, self._next = run, "", 0.0
        self._said: set[tuple[str, str]] = set()
        self.resumed = False  # whether Ray is to bring back the trials of a state in there

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        """Look at the folder, now and then."""
        if self.resumed and not trials:  # Ray logs why, and would begin the search anew
            self.found = "holds a state that Ray cannot go on from"
            raise RuntimeError(self.found)
        self.resumed = False
        if not self.found and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            if self.look():
                os.kill(os.getpid(), signal.SIGINT)  # Tune's way to end with its state saved

    def look(self) -> bool:
        """Whether the folder is unfit; if so the reserve is given up."""
        self.found = self.found or unfit(self.run)
        if self.found:
            _drop(RunFiles(self.run).reserve_file)
        return bool(self.found)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A trial has reported a round."""
        if TROUBLE in result and (trial.trial_id, result[TROUBLE]) not in self._said:
            self._said.add((trial.trial_id, result[TROUBLE]))
            say(f"note: trial {trial.trial_id}: {result[TROUBLE]}")

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial's attempt failed; there will be another."""
        say(f"note: trial {trial.trial_id} is tried again: {_why(trial)}")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial failed for good."""
        say(f"note: trial {trial.trial_id} failed: {_why(trial)}")

    def error(self, shown: Path) -> UserError:
        """What to say of the folder.  shown: as a person would write it."""
        return UserError(
            f"a search needs its folder, but {shown} {self.found}; the search was ended, its rounds can be read with "
            f"{command_line('status', shown)}, and {command_line('resume', shown)} goes on once that is put right"
        )

    @contextmanager
    def explaining(self, shown: Path) -> Iterator[None]:
        """Whatever goes wrong in here while the folder is unfit, that is why."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if self.look():
                raise self.error(shown) from error
            raise


def reason(error: str) -> str:
    """The last line of a stack, which says what happened."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _why(trial: Any) -> str:
    """Why a trial's attempt failed; of a process that died that it ran code of the user's, if it did."""
    try:
        why = one_line(reason(bounded.read(Path(trial.local_path, "error.txt")).decode(errors="replace")))
    except (OSError, TypeError):
        return "no reason given"
    if DIED not in why or not (own := sorted(Path(path).name for path in user_errors.PATHS)):
        return why
    return f"its process ended or crashed, and {', '.join(own)} of yours ran in it; Ray says: {why}"


def _drop(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        pass  # what cannot be written to cannot be cleared up either


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
