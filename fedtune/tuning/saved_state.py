"""Ray's saved state of a search: copied so that no death spoils it, and prepared for resuming.

Ray copies its files in place, several at once.  If a driver or a machine dies meanwhile, states are truncated, from two
generations, or ahead of the logs.  Here each file is replaced atomically, logs before the states that refer to them.
States that belong together are replaced together: a list names those that are completely written, and whoever resumes
the search finishes what its driver began.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import cloudpickle as pickle
from ray.tune import ResultGrid

from fedtune.cluster import ray_internals
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, say
from fedtune.runs.files import RunFiles, write_whole
from fedtune.runs.logs import logged
from fedtune.runs.trial_states import SNAPSHOTS

ENDED = ("TERMINATED", "ERROR")  # in Ray's words
PART = ".part"  # suffix of a file that will replace the one without it
STATE = re.compile(r"[\w-]+[-_]states?-[\w-]+\.(json|pkl)")  # of trials, searcher, limit and callbacks


class StateCopies:
    """Copies files that have changed since the last time from Ray's folder to the study's folder."""

    def __init__(self) -> None:
        """Initially no file is known to be copied."""
        self._copied: dict[Path, tuple[int, int, int]] = {}  # source -> its status when it was copied last

    def copy(self, source: Path, run: Path) -> None:
        """Bring the study's folder up to date; OSError if it cannot be written to."""
        files = [f for f in source.rglob("*") if f.is_file()]
        for log in (f for f in files if f.parent != source):
            copy = run / log.relative_to(source)
            if now := self._changed(log, copy):
                copy.parent.mkdir(parents=True, exist_ok=True)
                _part(log, copy).replace(copy)
                self._copied[log] = now
        states = [f for f in files if f.parent == source and STATE.fullmatch(f.name)]
        if changed := {f: now for f in states if (now := self._changed(f, run / f.name))}:
            for state in changed:
                _part(state, run / state.name)
            write_whole(RunFiles(run).states_file, json.dumps([f.name for f in changed]))
            commit_states(run)
            self._copied |= changed

    def _changed(self, source: Path, copy: Path) -> tuple[int, int, int] | None:
        """A file's current status; None if its copy is identical."""
        status = source.stat()
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if copy.exists() and (self._copied.get(source) == now or filecmp.cmp(source, copy, shallow=False)):
            return None
        return now


def commit_states(run: Path) -> None:
    """Finish replacing states that a driver had completely written before it died.  Only for the folder's driver."""
    listed = RunFiles(run).states_file
    if not listed.exists():
        return
    try:
        names = list(json.loads(listed.read_bytes()))
    except (ValueError, TypeError):
        names = []  # the list was damaged after it was written, as it is written atomically
    for name in filter(STATE.fullmatch, map(str, names)):
        if (part := run / (name + PART)).exists():
            part.replace(run / name)
    listed.unlink(missing_ok=True)


def _part(source: Path, copy: Path) -> Path:
    part = copy.with_name(copy.name + PART)
    shutil.copyfile(source, part)
    return part


def require_state(run: Path) -> bool:
    """Whether Ray kept trials to resume; UserError if they are there but cannot be read.

    Reading can run any code, as when Ray reads it: for trusted runs only.
    """
    states = [state for state in ray_internals.snapshots(run) if not ray_internals.none_begun(state)]
    if states and (damaged := [f.name for f in ray_internals.snapshot_files(run, states[-1]) if not readable(f)]):
        raise _not_resumable(run, f"Ray's saved state {', '.join(damaged)} in {run} is unreadable")
    if not states and any(run.glob("*/result.json")):
        raise _not_resumable(run, f"{run} holds trials, but no {SNAPSHOTS}, Ray's saved state")
    return bool(states)


def prepared(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Make a readable state fit to be resumed; returns what its trials have reported, by trial.

    Trials that Ray's state does not know began after its last snapshot; what they logged is moved into lost/.  The
    search tries their configurations again under other names; counting both would take a place on every rung.
    """
    *_, snapshot = ray_internals.snapshots(run)
    statuses, lost = ray_internals.trial_statuses(snapshot), RunFiles(run).lost_folder
    for folder in {file.parent for file in run.glob("*/result.json")}:
        if None not in statuses and folder.name.split("-")[-1] not in statuses:  # with None, Ray will refuse the state
            lost.mkdir(exist_ok=True)
            folder.rename(lost / folder.name)
    ray_internals.forget_decisions(snapshot)
    if gone := [t for t, status in statuses.items() if t and status in ENDED and not [*run.glob(f"*-{t}")]]:
        say(f"note: the folders of ended trials are gone: {', '.join(gone)}; the tables lack their rounds")
    return logged(run)


def drop_unlogged(
    run: Path, logged: dict[str, list[dict[str, Any]]], saved_round: Callable[[Path], int], every: int = 1
) -> None:
    """Remove checkpoints of trials whose rounds up to there are not all logged: they begin again, to the same numbers.

    saved_round: the round that a checkpoint's folder is of.  every: the rounds from one row to the next.
    """
    for folder in run.glob("*/checkpoint_*"):
        rows = logged.get(folder.parent.name.split("-")[-1], [])
        try:
            last_round = saved_round(folder)
        except Exception:  # a damaged one is reported when the trial wants it
            continue
        if not set(range(every, last_round + 1, every)) <= {r["training_iteration"] for r in rows}:
            shutil.rmtree(folder, ignore_errors=True)


def cut_short(grid: ResultGrid, planned: int, run: Path) -> bool:
    """Whether the search ended before its trials did: by the clock, or by the user.

    Ray's last snapshot says what still ran then; in memory Ray has marked that as terminated since.
    """
    *_, snapshot = ray_internals.snapshots(run)
    return len(grid) < planned or not set(ray_internals.trial_statuses(snapshot).values()) <= set(ENDED)


def _not_resumable(run: Path, what: str) -> UserError:
    return UserError(
        f"cannot resume: {what}; its rounds can be read with {command_line('status', run)}; start a new search"
    )


def readable(file: Path) -> bool:
    """Whether a file of Ray's state is whole."""
    try:
        if ray_internals.is_snapshot(file):
            return ray_internals.holds_trials(file)
        pickle.loads(file.read_bytes())  # Ray calls some of them .json
    except Exception:  # unpickling can raise anything
        return False
    return True
