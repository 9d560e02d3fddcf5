"""Ray Tune's private names that fedtune cannot do without, each behind a function.

tests/cluster/test_ray_internals.py tries each.  Those of Ray's processes are in ray_processes.py, and what only saves
time is in ray_optional.py.  Ray is imported where it is used: who only reads a run's
folder need not load it.  How a snapshot holds its trials is known to fedtune/runs/trial_states.py, which stands below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtune.core import bounded
from fedtune.runs.trial_states import SNAPSHOTS, trials_in

TUNER_FILE = "tuner.pkl"  # a run's settings
DECISIONS = ("_cached_trial_decisions", "_queued_trial_decisions")  # of the controller, in a snapshot
STACKS = ("ray.tune", "ray.train")  # the loggers that print stacks of trials
STACKS_VARIABLE = "TUNE_PRINT_ALL_TRIAL_ERRORS"  # whether they do


@contextmanager
def replaced(where: Any, **by: Any) -> Iterator[None]:
    """A module or class has other values under these names meanwhile."""
    before = {name: getattr(where, name) for name in by}
    for name, value in by.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(where, name, value)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables have these values meanwhile, and their former values afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# a tuner --------------------------------------------------------------------------------------------------------------


def tune_config(tuner: Any) -> Any:
    """The TuneConfig that a made or restored tuner will use; what is changed in it counts."""
    return tuner._local_tuner._tune_config


def callbacks(tuner: Any) -> list[Any]:
    """The callbacks that a made or restored tuner will call; what is changed in the list counts."""
    return tuner._local_tuner._run_config.callbacks


def limit_trials(tuner: Any, concurrent: int) -> None:
    """Let a restored tuner run so many trials at once, whatever was saved."""
    config = tune_config(tuner)
    config.max_concurrent_trials = config.search_alg.max_concurrent = concurrent


def save_with_next_snapshot(controller: Any, trial: Any) -> None:
    """Have a scheduler's controller write down a trial without a process, which it would leave as it was."""
    controller._tune_controller._mark_trial_to_checkpoint(trial)


# a trainable ----------------------------------------------------------------------------------------------------------


def seconds_of(trainable: Any) -> float:
    """The seconds that a trial has trained."""
    return trainable._time_total


def continue_from(trainable: Any, rounds: int, seconds: float) -> None:
    """Count a trial's rounds and seconds on from these."""
    trainable._iteration, trainable._time_total = rounds, seconds


def checkpoint_folder(trainable: Any) -> str | None:
    """The folder that the checkpoint which is being saved goes to; None where Tune keeps none."""
    storage = trainable._storage
    return storage.checkpoint_fs_path if storage else None


def unsaved(trainable: Any) -> Any:
    """The return value of `Trainable.save` if a checkpoint could not be written; the previous checkpoint stays the
    latest.
    """
    from ray.train._internal.session import _TrainingResult

    return _TrainingResult(None, trainable._last_result or {})


# the state of a search on disk ----------------------------------------------------------------------------------------


def snapshots(run: Path) -> list[Path]:
    """The snapshots of a search's trials, the latest last."""
    return sorted(run.glob(SNAPSHOTS))


def snapshot_files(run: Path, snapshot: Path) -> list[Path]:
    """A snapshot and the states of searcher and callbacks that go with it."""
    stamp = snapshot.stem.removeprefix(SNAPSHOTS.partition("*")[0])
    return sorted(run.glob(f"*-{stamp}.json")) + sorted(run.glob(f"*-{stamp}.pkl"))


def is_snapshot(file: Path) -> bool:
    """Whether a file is a snapshot of trials, not another state that goes with one."""
    return file.match(SNAPSHOTS)


def holds_trials(snapshot: Path) -> bool:
    """Whether a snapshot has trials and a controller; an error if it is damaged."""
    content = json.loads(bounded.read(snapshot))
    return bool(content["trial_data"]) and "runner_data" in content


def none_begun(snapshot: Path) -> bool:
    """Whether a snapshot is of a search that was interrupted before its first trial."""
    try:
        return bool(json.loads(bounded.read(snapshot))["trial_data"] == [])
    except Exception:  # it is damaged
        return False


def trial_statuses(snapshot: Path) -> dict[str | None, str]:
    """How each trial stood, in Ray's words; an error if the snapshot is damaged."""
    return {trial.get("trial_id"): trial.get("status", "") for trial in trials_in(snapshot)}


def forget_decisions(snapshot: Path) -> None:
    """Drop what the controller was about to do with trials that were at their checkpoints when the state was saved.

    It would do it after the next checkpoint, to a trial that has begun again by then: one that was to end in its last
    round would be stopped in its first.
    """
    state = json.loads(bounded.read(snapshot))
    if any(state["runner_data"].get(name) for name in DECISIONS):
        state["runner_data"] |= {name: {} for name in DECISIONS if state["runner_data"].get(name)}
        part = snapshot.with_name(snapshot.name + ".part")
        part.write_text(json.dumps(state))
        part.replace(snapshot)


@contextmanager
def states_copied_by(copy: Callable[[Path, Path], None]) -> Iterator[None]:
    """The driver's files of a search go to a local folder by this meanwhile, before Tune goes on.

    copy: from which folder to which; what it cannot write is missing there, as what Tune copies is.
    """
    from pyarrow.fs import LocalFileSystem
    from ray.train._internal import storage

    tunes = storage._FilesystemSyncer.sync_up

    def sync_up(syncer: Any, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        if exclude or not isinstance(syncer.storage_filesystem, LocalFileSystem):
            return bool(tunes(syncer, local_dir, remote_dir, exclude))
        try:
            copy(Path(local_dir), Path(remote_dir))
        except OSError:
            return False
        return True

    with replaced(storage._FilesystemSyncer, sync_up=sync_up):
        yield
