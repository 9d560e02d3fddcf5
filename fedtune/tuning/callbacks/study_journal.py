"""The Optuna study in a file, for optuna-dashboard, reports and later searches: it gets each trial that has ended."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from ray.tune import Callback

from fedtune.tuning.optuna_searcher import REPEATED, OptunaSearcher


class StudyJournal(Callback):
    """Errors are swallowed, because Tune would end the search over them."""

    def __init__(self, searcher: OptunaSearcher, path: Path) -> None:
        """searcher: Tune may replace its study by a restored one before the first trial ends."""
        self._searcher, self._path = searcher, path
        self._written: set[int] = set()
        self._journal: JournalStorage | None = None

    def on_trial_complete(self, *_: Any, **info: Any) -> None:
        """Write the trials that have ended since the last time."""
        try:
            journal = self._journal = self._journal or self._begun()
            for trial in self._searcher.study.get_trials(deepcopy=False):
                new = trial.state.is_finished() and trial.number not in self._written
                if new and REPEATED not in trial.user_attrs:
                    journal.create_new_trial(0, in_file(trial))
                    self._written.add(trial.number)
        except Exception:
            self._journal = None  # begin the file anew the next time
            logging.getLogger(__name__).debug("the study could not be written", exc_info=True)

    on_trial_error = on_trial_complete

    def _begun(self) -> JournalStorage:
        for old in (self._path, self._path.with_name(f"{self._path.name}.lock")):  # a killed driver leaves both
            old.unlink(missing_ok=True)
        self._written, journal, study = set(), JournalStorage(JournalFileBackend(str(self._path))), self._searcher.study
        journal.create_new_study(study.directions, study.study_name)  # number 0, the only one in the file
        for name, value in study.user_attrs.items():
            journal.set_study_user_attr(0, name, value)
        for name, value in self._searcher.storage.get_study_system_attrs(study._study_id).items():
            journal.set_study_system_attr(0, name, value)
        return journal


def in_file(trial: FrozenTrial) -> FrozenTrial:
    """A trial as people read it: one that diverged is pruned, not complete with the worst value, as samplers see it."""
    if not (trial.user_attrs.get("diverged") and trial.state == TrialState.COMPLETE):
        return trial
    pruned, values = copy.copy(trial), trial.intermediate_values
    pruned.state, pruned.values = TrialState.PRUNED, [values[max(values)]] if values else None
    return pruned
