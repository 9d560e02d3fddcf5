"""Watch the disk of a study: a search ends in time when the disk is full or gone, and results stay readable."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.tune import Callback

from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, one_line, say
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import TROUBLE, reason

RESERVE = 4 * 2**20  # bytes reserved for a search's end: Ray's state, every trial's rounds, the tables
PROBE = 2**16  # bytes written to test whether the folder is writable
EVERY = 2.0  # seconds between checks


def require_room(storage: Path) -> None:
    """UserError unless the disk has room to start a search."""
    folder = next(p for p in (storage, *storage.absolute().parents) if p.exists())
    free = shutil.disk_usage(folder).free
    if free < 2 * RESERVE:
        raise UserError(
            f"a search needs at least {2 * RESERVE / 1e6:.1f} MB on the disk of its folder, but {folder} has "
            f"{free / 1e6:.1f} MB left; make room, or give another --storage-path"
        )


@contextmanager
def reserved(run: Path) -> Iterator[None]:
    """Reserve room on the run's disk by a file, which is deleted when the search ends or the disk is full."""
    reserve = RunFiles(run).reserve_file
    try:
        reserve.write_bytes(os.urandom(RESERVE))  # random, because zeros take no room on a compressing file system
        yield
    finally:
        _drop(reserve)


def unfit(run: Path) -> str:
    """What is wrong with a study's folder; "" if it exists and is writable."""
    files = RunFiles(run)
    if not files.record_file.exists():
        return "is gone"
    try:
        files.probe_file.write_bytes(os.urandom(PROBE))
        full = shutil.disk_usage(run).free < RESERVE
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full:
            return f"cannot be written to ({error.strerror})"
    finally:
        _drop(files.probe_file)
    return "is on a full disk" if full else ""


class DiskWatch(Callback):
    """End a search, as Ctrl-C does, if its folder is full or gone; print a line for each problem of a trial.

    Ray itself would continue: every trial would fail at its next checkpoint, and files copied to a full disk would be
    truncated.
    """

    def __init__(self, run: Path) -> None:
        """Watch the disk that holds this study's folder."""
        self.run, self.fault, self._next = run, "", 0.0
        self._reported: set[tuple[str, str]] = set()
        self.resumed = False  # whether Ray should restore trials from a state in the folder

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        """Check the folder from time to time."""
        if self.resumed and not trials:  # Ray logs why, and would start the search from scratch
            self.fault = "holds a state that Ray cannot resume from"
            raise RuntimeError(self.fault)
        self.resumed = False
        if not self.fault and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            if self.look():
                os.kill(os.getpid(), signal.SIGINT)  # on this signal Tune saves its state and ends

    def look(self) -> bool:
        """Whether the folder is unusable; if so, the reserve is released."""
        self.fault = self.fault or unfit(self.run)
        if self.fault:
            _drop(RunFiles(self.run).reserve_file)
        return bool(self.fault)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A trial has reported a round."""
        if TROUBLE in result and (trial.trial_id, result[TROUBLE]) not in self._reported:
            self._reported.add((trial.trial_id, result[TROUBLE]))
            say(f"note: trial {trial.trial_id}: {result[TROUBLE]}")

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial's attempt failed and will be repeated."""
        say(f"note: trial {trial.trial_id} is tried again: {_why(trial)}")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial failed for good."""
        say(f"note: trial {trial.trial_id} failed: {_why(trial)}")

    def error(self, shown: Path) -> UserError:
        """The error about the folder.  shown: its path as a person would type it."""
        return UserError(
            f"a search needs its folder, but {shown} {self.fault}; the search was ended, its rounds can be read with "
            f"{command_line('status', shown)}, and {command_line('resume', shown)} continues it once that is fixed"
        )

    @contextmanager
    def explaining(self, shown: Path) -> Iterator[None]:
        """If anything fails while the folder is unusable, raise that as the reason."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, UserError) and self.look():
                raise self.error(shown) from error
            raise


def _why(trial: Any) -> str:
    try:
        return one_line(reason(Path(trial.local_path, "error.txt").read_text("utf-8", errors="replace")))
    except (OSError, TypeError):
        return "no reason given"


def _drop(file: Path) -> None:
    with suppress(OSError):  # the folder may not be writable
        file.unlink(missing_ok=True)
