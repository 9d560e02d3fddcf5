"""Resuming a search whose driver died or was interrupted, and what resume and replay need of its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.runs import user_copies
from fedtune.runs.files import LEVELS, OVER, kind_of
from fedtune.runs.folder import StudyFolder
from fedtune.runs.provenance import record_for_resume
from fedtune.studies import search_study
from fedtune.studies.comparison import comparison, levels
from fedtune.tuning import plan, saved_state
from fedtune.tuning.options.search import SearchOptions

STATE = "Ray reads a run's state in a way that can run any code"


def resume(path: Path, changed: Mapping[str, Any], trust: bool = False) -> int:
    """Resume a search or a comparison from its folder; the exit status.

    changed: options of SearchOptions with new values.  trust: also if another user wrote the folder.
    """
    run = StudyFolder(path)
    if not trust:
        user_copies.require_own(path, STATE)
    if kind_of(path) == LEVELS:
        return levels.resume(path, changed)
    if run.is_comparison:
        return comparison.resume(path, changed)
    record, options = record_of(run, trust), options_of(run, changed)
    if record["state"] in OVER:
        raise UserError(
            f"only an unfinished search can be resumed, but {path} is {record['state']}; --trials +N adds trials"
        )
    for entry, what in (("extends", "an extension"), ("replays", "a repetition")):
        if entry in record:
            again = f"repeat it from {record[entry]}, --name OTHER"
            raise UserError(f"{what} of another search cannot be resumed, but {path} is one; {again}")
    if run.states_file.exists():  # the driver died while it replaced them
        with run.lock():
            saved_state.commit_states(path)
    saved_state.require_state(path)
    planned = plan.make(options, resumed=True)
    return search_study.run_with_ray(planned, record_for_resume(record), resumed=True)


def record_of(run: StudyFolder, trust: bool, *needed: str) -> dict[str, Any]:
    """A search's record; UserError unless it says how the search was started, is complete, and is the user's own.

    The user's files of the search are registered; UserError if one has changed since.
    """
    record = run.record_with("state", "defaults", *needed)
    try:
        SearchOptions.from_record(record)
    except UserError as error:
        raise run.damaged(error) from error
    if not trust:
        user_copies.require_own(run.path, STATE)
    user_copies.restore(run.path, record, trust=True)
    return record


def options_of(run: StudyFolder, changed: Mapping[str, Any]) -> SearchOptions:
    """A search's own options, with the folder's present name and the options with new values."""
    options, folder = SearchOptions.from_record(run.record), run.path.absolute()
    return dataclasses.replace(options, name=folder.name, storage_path=str(folder.parent), **changed)
