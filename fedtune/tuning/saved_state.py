"""Ray's saved state of a search, prepared for resuming: readable, and consistent with the logs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import cloudpickle as pickle
from ray.tune import ResultGrid

from fedtune.cluster import ray_internals
from fedtune.core import bounded
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, say, several
from fedtune.runs.files import RunFiles
from fedtune.runs.logs import logged
from fedtune.runs.trial_states import SNAPSHOTS

ENDED = ("TERMINATED", "ERROR")  # in Ray's words


def require_state(run: Path) -> bool:
    """Whether Ray kept trials to resume; UserError if they are there but cannot be read.

    If the state is damaged, the previous driver's is used, if there is one.  Reading can run any code, as when Ray
    reads it: for trusted runs only.
    """
    states = [state for state in ray_internals.snapshots(run) if not ray_internals.none_begun(state)]
    while states:
        files = ray_internals.snapshot_files(run, states.pop())
        damaged = [f.name for f in files if not _readable(f)]
        if not damaged:
            return True
        if not states:
            raise _not_resumable(run, f"Ray's saved state {', '.join(damaged)} in {run} is unreadable")
        for file in files:
            file.rename(file.with_name(file.name + ".damaged"))
        say(f"note: {', '.join(damaged)} cannot be read; continuing from the state of the previous driver")
    if any(run.glob("*/result.json")):
        raise _not_resumable(run, f"{run} holds trials, but no {SNAPSHOTS}, Ray's saved state")
    return False


def prepared(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Make a readable state fit to be resumed; returns what its trials have reported, by trial."""
    *_, snapshot = ray_internals.snapshots(run)
    set_aside(run)
    ray_internals.forget_decisions(snapshot)
    _tell_of_gone(run, snapshot)
    return logged(run)


def _tell_of_gone(run: Path, snapshot: Path) -> None:
    """Say which ended trials lost their folders; a trial that had not ended starts again, and says so itself."""
    over = [t for t, status in ray_internals.trial_statuses(snapshot).items() if t and status in ENDED]
    trials_here = {folder.name.split("-")[-1] for folder in run.iterdir()}
    if gone := [t for t in over if t not in trials_here]:
        trials = several(len(gone), "trial")
        say(f"note: the folders of {trials} that had ended are gone: {', '.join(gone)}; the tables lack their rounds")


def set_aside(run: Path) -> None:
    """Move what was logged of trials that Ray's state does not know into lost/: they began after its last snapshot.

    The search tries their configurations again under other names; counting both would take a place on every rung.
    """
    *_, snapshot = ray_internals.snapshots(run)
    statuses = ray_internals.trial_statuses(snapshot)
    if None in statuses:
        return  # not as Ray writes it: Ray will say so
    for folder in {file.parent for file in run.glob("*/result.json")}:
        if folder.name.split("-")[-1] not in statuses:
            folder_of_lost = RunFiles(run).lost_folder
            folder_of_lost.mkdir(exist_ok=True)
            folder.rename(folder_of_lost / folder.name)


def drop_unlogged(
    run: Path, logged: dict[str, list[dict[str, Any]]], saved_round: Callable[[Path], int], every: int = 1
) -> None:
    """Remove checkpoints of trials whose rounds up to there are not all logged: they begin again, to the same numbers.

    Rounds are lost where the folder had vanished, or where a driver died while Ray copied its files.

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


def tuner_readable(run: Path) -> bool:
    """Whether Ray's saved settings are readable; otherwise they are made again from the search's options."""
    return _readable(run / ray_internals.TUNER_FILE)


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


def _readable(file: Path) -> bool:
    """Whether a file of Ray's state is whole."""
    try:
        if ray_internals.is_snapshot(file):
            return ray_internals.holds_trials(file)
        pickle.loads(bounded.read(file))  # Ray calls some of them .json
    except (ImportError, AttributeError) as error:
        if "fedtune" not in str(error):
            return False
        raise _not_resumable(file.parent, f"{file.parent} was started by an earlier fedtune ({error})") from error
    except Exception:  # unpickling can raise anything
        return False
    return True
