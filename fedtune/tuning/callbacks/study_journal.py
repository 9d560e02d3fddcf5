"""The Optuna study in a file that grows while a search runs, so that optuna-dashboard shows the search live."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from ray.tune import Callback

from fedtune.tuning.optuna_searcher import REPEATED

PERIOD = 1.0  # seconds between two times that something is written
LONG, SHARE = 0.01, 0.05  # an update that takes LONG seconds may take this SHARE of the driver's time
LOCK = ".lock"  # what Optuna appends to the name of a journal that is being written


class BufferedFile(BaseJournalBackend):
    """A journal's file that is written by `flush`.  Optuna's own waits for the disk at every entry, 4 ms each."""

    def __init__(self, path: Path) -> None:
        """Begin an empty journal; a killed driver's file is replaced."""
        for old in (path, path.with_name(path.name + LOCK)):
            old.unlink(missing_ok=True)
        self._file = JournalFileBackend(str(path))
        self._waiting: list[dict[str, Any]] = []  # entries that the file does not hold yet
        self._written = 0

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Take entries, as they are now: they share dictionaries with the study in memory, which changes them."""
        self._waiting += copy.deepcopy(logs)

    def read_logs(self, log_number_from: int) -> Sequence[dict[str, Any]]:
        """The entries from that number on, which the one storage over this file asks for as soon as it appended."""
        return self._waiting[log_number_from - self._written :]

    def flush(self) -> None:
        """Write all that waits, at once."""
        if self._waiting:
            self._file.append_logs(self._waiting)
            self._written += len(self._waiting)
            self._waiting = []


class Mirror:
    """Writes a study in memory to a journal: each time what has changed since the last."""

    def __init__(self, study: optuna.Study, storage: BaseStorage, path: Path) -> None:
        """storage: that of the study, which holds no other study."""
        self._source, self._storage = study, storage
        self._file = BufferedFile(path)
        self._journal = JournalStorage(self._file)
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._journal_id = self._journal.create_new_study(study.directions, study.study_name)
        self._trials_seen, self._open = 0, list[int]()  # trials written, and the numbers of those that may change
        self._ids: dict[int, int] = {}  # number of a trial -> its id in the journal

    def update(self) -> None:
        """Write what is new, and wait for the disk once."""
        journal, to = self._journal, self._journal_id
        _add(
            self._storage.get_study_user_attrs(self._study_id),
            journal.get_study_user_attrs(to),
            lambda name, value: journal.set_study_user_attr(to, name, value),
        )
        _add(
            self._storage.get_study_system_attrs(self._study_id),
            journal.get_study_system_attrs(to),
            lambda name, value: journal.set_study_system_attr(to, name, value),
        )
        trials = self._source.get_trials(deepcopy=False)
        for number in self._open:
            self._bring_up_to_date(in_file(trials[number]), self._ids[number])
        new = [t for t in trials[self._trials_seen :] if REPEATED not in t.user_attrs]
        self._ids |= {t.number: journal.create_new_trial(to, in_file(t)) for t in new}
        self._open = [n for n in (*self._open, *(t.number for t in new)) if not trials[n].state.is_finished()]
        self._trials_seen = len(trials)
        self._file.flush()

    def _bring_up_to_date(self, trial: FrozenTrial, to: int) -> None:
        """Write to the journal how a running trial has changed."""
        journal, written = self._journal, self._journal.get_trial(to)
        _add(trial.user_attrs, written.user_attrs, lambda n, v: journal.set_trial_user_attr(to, n, v))
        _add(trial.system_attrs, written.system_attrs, lambda n, v: journal.set_trial_system_attr(to, n, v))
        _add(
            trial.intermediate_values,
            written.intermediate_values,
            lambda step, value: journal.set_trial_intermediate_value(to, step, value),
        )
        if trial.state != written.state:
            journal.set_trial_state_values(to, trial.state, trial.values)


def in_file(trial: FrozenTrial) -> FrozenTrial:
    """A trial as the file holds it: one that diverged is pruned, with the last value of a round that it trained.

    In memory it is complete with the worst possible value, from which the sampler learns.  In a file that people read,
    that would look like a measured value, and would distort importance.
    """
    if not (trial.user_attrs.get("diverged") and trial.state == TrialState.COMPLETE):
        return trial
    pruned, values = copy.copy(trial), trial.intermediate_values
    pruned.state, pruned.values = TrialState.PRUNED, [values[max(values)]] if values else None
    return pruned


class StudyJournal(Callback):
    """Keeps a searcher's study in the study's folder: once a second while rounds come in, and when a trial ends.

    Rounds cost nothing: their reports are looked up when something is written.  Errors meanwhile are swallowed, because
    Tune would end the search over them; `close` then writes the whole file again.
    """

    def __init__(self, searcher: Any, path: Path) -> None:
        """searcher: an OptunaSearcher, whose study Tune may replace by a restored one before it begins."""
        self.searcher, self.path = searcher, path
        self._mirror: Mirror | None = None
        self._next, self._rest, self._broken = 0.0, 0.0, False

    def __reduce__(self) -> tuple:
        """Tune may save its callbacks; this one begins its file again."""
        return StudyJournal, (self.searcher, self.path)

    def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
        """Write when due; Tune calls this some ten times a second even if nothing happens."""
        if time.monotonic() >= max(self._next, self._rest):
            self._update()
            self._next = time.monotonic() + PERIOD

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Write that a trial ended, and when; a little later where writing takes long."""
        if time.monotonic() >= self._rest:
            self._update()

    def close(self) -> None:
        """Write how the search ended."""
        self._update()
        if self._broken:
            self._write()

    def _update(self) -> None:
        if self._broken:
            return
        began = time.thread_time()
        try:
            self._write()
        except Exception:
            self._broken, self._mirror = True, None
            logging.getLogger(__name__).debug("the study could not be written", exc_info=True)
        if (took := time.thread_time() - began) > LONG:
            self._rest = time.monotonic() + took / SHARE

    def _write(self) -> None:
        if self._mirror is None:
            self._mirror = Mirror(self.searcher.study, self.searcher.storage, self.path)
        self._mirror.update()


def _add(now: dict[Any, Any], before: dict[Any, Any], write: Callable[[Any, Any], None]) -> None:
    """Write the entries that were not there before, or were others."""
    for name, value in now.items():
        if name not in before or before[name] != value:
            write(name, value)
