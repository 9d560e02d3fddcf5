"""The disk under a run's folder: a search ends in time when it is full or gone, and what was found stays readable."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ray import cloudpickle as pickle
from ray.tune import Callback

from fedtune.core.errors import UserError
from fedtune.core.terminal import say

RESERVE = 4 * 2**20  # bytes kept for a search's last words: Ray's state, every trial's rounds, the tables
PROBE = 2**16  # bytes written to see whether any can be
EVERY = 2.0  # seconds between looks
DECISIONS = ("_cached_trial_decisions", "_queued_trial_decisions")  # of Ray's controller
TROUBLE = "trouble"  # a trial's result: what went wrong in it without ending it


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
    held = run / ".reserve"
    try:
        held.write_bytes(os.urandom(RESERVE))  # zeros would take no room where the disk packs them
        yield
    finally:
        _drop(held)


def unfit(run: Path) -> str:
    """What is wrong with a run's folder; empty if it is there and can be written to."""
    if not (run / "run.json").exists():
        return "is gone"
    probe = run / ".probe"
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
        """run: the run's folder."""
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
            _drop(self.run / ".reserve")
        return bool(self.found)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """A round was played."""
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
            f"fedtune status {shown}, and fedtune resume {shown} goes on once that is put right"
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


def require_state(run: Path) -> bool:
    """Whether Ray kept trials to go on with; UserError if they are there but cannot be read.

    A damaged state steps aside for that of the driver before, if there is one.  Reading can run any code, as it does
    when Ray reads: for a trusted run only.
    """
    states = sorted(run.glob("experiment_state-*.json"))
    while states:
        stamp = states[-1].stem.removeprefix("experiment_state-")
        files = sorted(run.glob(f"*-{stamp}.json")) + sorted(run.glob(f"*-{stamp}.pkl"))
        damaged = [f.name for f in files if not _readable(f)]
        if not damaged:
            return True
        states.pop()
        if states:
            for file in files:
                file.rename(file.with_name(file.name + ".damaged"))
            say(f"note: {', '.join(damaged)} cannot be read; going on from the state of the driver before")
        else:
            raise _lost(run, f"{', '.join(damaged)} in {run} cannot be read")
    if any(run.glob("*/result.json")):
        raise _lost(run, f"{run} holds trials and no experiment_state-*.json")
    return False


def set_aside(run: Path) -> None:
    """Move what was logged of trials that Ray's state does not know into lost/: they began after its last snapshot.

    The search tries what they tried anew, under other names; counted too, they would take a place on every rung.
    """
    state = json.loads(max(run.glob("experiment_state-*.json")).read_bytes())
    known = {json.loads(trial).get("trial_id") for trial, _ in state["trial_data"]}
    if None in known:
        return  # not as Ray writes it: Ray will say so
    for folder in {file.parent for file in run.glob("*/result.json")}:
        if folder.name.split("-")[-1] not in known:
            (run / "lost").mkdir(exist_ok=True)
            folder.rename(run / "lost" / folder.name)


def forget_decisions(run: Path) -> None:
    """Drop what Ray was about to do with trials that were at their checkpoints when its state was saved.

    It would do it after the next checkpoint, to a trial that has begun again by then: one that was to end in its last
    round would be stopped in its first.
    """
    file = max(run.glob("experiment_state-*.json"))
    state = json.loads(file.read_bytes())
    if any(decided := [state["runner_data"].get(name) for name in DECISIONS]):
        state["runner_data"] |= {n: {} for n, what in zip(DECISIONS, decided, strict=True) if what}
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(state))
        part.replace(file)


def drop_unlogged(run: Path, logged: dict[str, list[dict[str, Any]]]) -> None:
    """Remove checkpoints of trials whose rounds up to there are not all logged: they begin again, to the same numbers.

    Rounds are lost where the folder had vanished, or where a driver died while Ray copied its files.
    """
    for folder in run.glob("*/checkpoint_*"):
        rows = logged.get(folder.parent.name.split("-")[-1], [])
        try:
            reached = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")[0]["round"]
        except Exception:  # a damaged one is told when the trial wants it
            continue
        if not set(range(1, reached + 1)) <= {r["training_iteration"] for r in rows}:
            shutil.rmtree(folder, ignore_errors=True)


def require_found(run: Path) -> None:
    """UserError unless the tables and the study that a finished search left can be read."""
    try:
        trials, _ = (pd.read_parquet(run / f"{name}.parquet") for name in ("trials", "rounds"))
        (run / "study.journal").stat()  # Optuna would make an empty one
        journal = JournalStorage(JournalFileBackend(str(run / "study.journal")))
        told = optuna.load_study(study_name=optuna.get_all_study_names(journal)[0], storage=journal).trials
        ended = {t.user_attrs["trial"] for t in told if t.state.is_finished()}
        if lost := set(trials["trial"][trials["status"].isin(["finished", "stopped"])]) - ended:
            raise ValueError(f"the study lacks {len(lost)} trials")
    except Exception as error:  # whatever reading raises
        raise UserError(
            "a search is extended from its trials.parquet, rounds.parquet and study.journal, but one in "
            f"{run} cannot be read ({reason(str(error))}); what Ray logged can: fedtune status {run}"
        ) from error


def _lost(run: Path, what: str) -> UserError:
    return UserError(
        f"a search is gone on with from the state that Ray kept of it, but {what}; its rounds can be read with fedtune "
        f"status {run}, and a new search begun"
    )


def _readable(file: Path) -> bool:
    """Whether a file of Ray's state is whole."""
    try:
        if file.name.startswith("experiment_state"):
            content = json.loads(file.read_bytes())
            return bool(content["trial_data"]) and "runner_data" in content
        pickle.loads(file.read_bytes())  # Ray calls some of them .json
    except Exception:  # whatever unpickling raises
        return False
    return True


def tuner_readable(run: Path) -> bool:
    """Whether what Ray keeps of the settings is whole; otherwise they are made again from the search's arguments."""
    return _readable(run / "tuner.pkl")


def quiet() -> None:
    """Leave out Ray's stacks of what Watch says in a line; a failed trial's is in its error.txt."""
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    for name in ("ray.tune", "ray.train"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def reason(error: str) -> str:
    """The last line of a stack, which says what happened."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _why(trial: Any) -> str:
    try:
        return reason(Path(trial.local_path, "error.txt").read_text(errors="replace"))
    except (OSError, TypeError):
        return "no reason given"


def _drop(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        pass  # what cannot be written to cannot be cleared up either


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
