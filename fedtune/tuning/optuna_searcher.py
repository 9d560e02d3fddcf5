"""Optuna as Tune's searcher, through Optuna's public ask and tell; and what it suggested, written down."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from ray.tune import Callback
from ray.tune.search import Searcher
from ray.tune.search.sample import Categorical, Domain

from fedtune.core import metrics
from fedtune.core.objectives import BY_ACCURACY, EXCESSES, Goal
from fedtune.core.process import one_thread
from fedtune.runs.files import append_line
from fedtune.runs.trial_states import BROKEN
from fedtune.tuning.space_facts import is_finite, key, untried
from fedtune.tuning.space_types import Condition, Config, Space, met, range_of

TOLD = "reported to the sampler"  # a diverged trial's attribute with the value that the sampler was told
REPEATED = "drawn_before"  # marks a trial in memory whose configuration had been tried, and which another replaced
DRAWS, LEFT = 20, 1000  # draws for an untried configuration; then one is taken from so many untried ones
LEAST = 1e-9  # the least violation of every constraint by a diverged trial


class OptunaSearcher(Searcher):
    """An Optuna study that gives Tune configurations and gets the results of their trials.

    Ray's own OptunaSearch reports every stopped trial as complete, with its value at that round.  Here it is pruned.
    A diverged trial is complete with the worst possible value (if a metric has none, the worst until then), and a
    failed one failed.  With several objectives a diverged trial is pruned as well: there is no worst amount of
    communication, and the little that it used would put it on the Pareto front.  Constraint violations are reported
    when a trial ends; for a stopped trial, as it would have ended.

    The first trials may have values outside the space, which Optuna cannot represent: a log-scale range has no 0.
    Optuna gets the nearest value instead.  Otherwise it suggests the same as Ray's would.
    """

    def __init__(
        self,
        *,
        space: Space,
        sampler: BaseSampler,
        study: str,
        goal: Goal = BY_ACCURACY,
        points: Sequence[Config] = (),
        outside: Sequence[Config] = (),
        log: Path | None = None,
        once: bool = False,
    ) -> None:
        """What to suggest, and by which goal.

        study        the study's name
        points       what is suggested first, as Optuna can represent it
        outside      for each of these, its values outside the space, as they are tried
        log          the file that suggestions are written to, a line each
        once         in a finite space no configuration is suggested twice while others are left
        """
        names: Any = [o.name for o in goal.objectives]
        modes: Any = [o.mode for o in goal.objectives]
        super().__init__(metric=names, mode=modes)
        self.goal, self.log, self.space = goal, log, space
        self.distributions = distributions(space)
        self.storage = InMemoryStorage()
        self.study = optuna.create_study(
            storage=self.storage,
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
            study_name=study,
            directions=["minimize" if m == "min" else "maximize" for m in modes],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study.set_metric_names(names)  # on the axes of optuna-dashboard
        for point in points:
            self.study.enqueue_trial(point)
        self._outside, self._points_left = list(outside), len(points)
        self._finite, self._tried = once and is_finite(space), set[str]()
        self._trials: dict[str, optuna.Trial | None] = {}  # by Tune's name; None once it has ended
        self._last_rounds: dict[str, int] = {}  # trial -> the last round it reported; after a resume some are run again
        self._worst: float | None = None  # the worst value of any round of any trial
        self._largest_excess: dict[str, float] = {}  # by how much any trial has broken each constraint

    def suggest(self, trial_id: str) -> Config:
        """The configuration that a new trial of that name is to try."""
        trial, config = self._new()
        self._trials[trial_id] = trial
        trial.set_user_attr("trial", trial_id)
        if self._outside:
            config |= self._outside.pop(0)
        self._tried.add(key(config))
        if self.log:
            append_line(self.log, json.dumps({"trial": trial_id, "config": config}))
        return config

    def _new(self) -> tuple[optuna.Trial, Config]:
        """The sampler's next suggestion that was not tried before; if it keeps repeating, another untried one."""
        given, self._points_left = self._points_left > 0, max(0, self._points_left - 1)
        for draw in range(DRAWS + 1):
            if conditions := self.space.conditions:
                trial = self.study.ask()
                config = suggest(trial, self.distributions, conditions)
            else:
                trial = self.study.ask(self.distributions)
                config = dict(trial.params)
            if given or not self._finite or key(config) not in self._tried:
                break
            if not (rest := list(untried(self.space, self._tried, LEFT))):
                break
            trial.set_user_attr(REPEATED, True)
            self.study.tell(trial, state=TrialState.FAIL)
            if draw == DRAWS - 1:
                self.study.enqueue_trial(random.Random(len(self._tried)).choice(rest))
        return trial, config

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """Report a round's value to Optuna; a round that is trained again after a resume is reported once."""
        trial = self._trials[trial_id]
        if trial is None or result["training_iteration"] <= self._last_rounds.get(trial_id, 0):
            return
        self._last_rounds[trial_id] = result["training_iteration"]
        for name, value in attributes(result).items():
            trial.set_user_attr(name, value)
        if len(self.goal.objectives) == 1:
            value, objective = result[self.goal.first.attribute], self.goal.first
            trial.report(value, result["training_iteration"])
            if self._worst is None or objective.better(self._worst, value):
                self._worst = value

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Report to Optuna how a trial ended."""
        if (trial := self._trials[trial_id]) is None:  # Ray's state may be of the moment before it noted the end
            return
        if result and self.goal.first.name in result and not result.get("diverged"):
            self.on_trial_result(trial_id, result)  # Tune reports the last round only here
        self._trials[trial_id], (state, values) = None, self._outcome(result, error)
        if result and state != TrialState.FAIL:
            self._constrain(trial, result)
        if result and result.get("diverged"):
            trial.set_user_attr("diverged", True)
            if values:
                trial.set_user_attr(TOLD, values[0])
        self.study.tell(trial, values, state=state)

    def _outcome(self, result: dict | None, error: bool) -> tuple[TrialState, list[float] | None]:
        """The state and values of an ended trial; a pruned one's value is the last that it reported."""
        goal = self.goal
        if error or not result or goal.first.name not in result or result.get(BROKEN):
            return TrialState.FAIL, None
        if result.get("diverged") and len(goal.objectives) == 1:
            worst, seen = metrics.worst(goal.first.name), self._worst
            if worst is None or (seen is not None and goal.first.better(worst, seen)):  # a program's loss has no bound
                worst = seen
            return (TrialState.PRUNED, None) if worst is None else (TrialState.COMPLETE, [worst])
        if not result.get("complete"):
            return TrialState.PRUNED, None
        return TrialState.COMPLETE, [result[o.attribute] for o in goal.objectives]

    def _constrain(self, trial: optuna.Trial, result: dict) -> None:
        excesses = result.get(EXCESSES)
        for i, constraint in enumerate(map(str, self.goal.constraints)):
            largest = max(self._largest_excess.get(constraint, LEAST), excesses[i] if excesses else LEAST)
            self._largest_excess[constraint] = largest
            trial.set_constraint(constraint, excesses[i] if excesses else largest)

    def learn(self, path: Path, complete: bool = True, but: Collection[str] = ()) -> None:
        """Begin with the ended trials of an exported study, except those named in `but`.

        complete: False where our trials last longer, so that those count as pruned.
        """
        earlier = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))
        trials = earlier.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
        trials = [t for t in trials if t.user_attrs.get("trial") not in but]
        trials.sort(key=lambda t: str(t.datetime_start))  # as they were suggested; the file has them as they ended
        for trial in trials:
            if TOLD in trial.user_attrs:  # its value in the file is that of its last round (`in_file`)
                trial.state, trial.values = TrialState.COMPLETE, [trial.user_attrs[TOLD]]
            elif not complete and not trial.user_attrs.get("diverged"):
                trial.state = TrialState.PRUNED
        for trial in trials:  # the sampler needs one range for all trials, and these may have had narrower ones
            trial.distributions |= {n: self.distributions[n] for n in trial.distributions if n in self.distributions}
        self.study.add_trials(trials)
        self._tried |= {key(t.params) for t in trials if complete}

    def save(self, checkpoint_path: str) -> None:
        """Save the study and what Tune got; not the path of the suggestions, as a study's folder may move."""
        state = {name: value for name, value in vars(self).items() if name != "log"}
        Path(checkpoint_path).write_bytes(pickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Go on from what `save` wrote; this can run any code, as whatever Ray restores can."""
        state = pickle.loads(Path(checkpoint_path).read_bytes())
        # as an earlier version saved it: all trials, and which of them have ended
        state["_trials"] |= dict.fromkeys(state.pop("_ended_trials", ()))
        vars(self).update(state)


def attributes(result: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's user attributes about its last round: for readers of the study, never for the sampler."""
    figures = {"rounds": result.get("round"), "comm_mb": result.get("comm_mb"), "test_acc": result.get("test_acc")}
    return {name: value for name, value in figures.items() if value is not None}


def suggest(
    trial: optuna.Trial, distributions: Mapping[str, BaseDistribution], conditions: Mapping[str, Condition]
) -> Config:
    """A configuration as an Optuna trial suggests it; each distribution comes after those its condition depends on."""
    config: Config = {}
    for name, wanted in distributions.items():
        if met(conditions.get(name, {}), config):
            config[name] = _suggest(trial, name, wanted)
    return config


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """A space's domains as Optuna's distributions."""
    return {name: _distribution(domain) for name, domain in space.domains.items()}


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, Categorical):
        return CategoricalDistribution(domain.categories)
    low, high, log, integer = range_of(domain)
    return IntDistribution(int(low), int(high), log=log) if integer else FloatDistribution(low, high, log=log)


def _suggest(trial: optuna.Trial, name: str, over: BaseDistribution) -> Any:
    if isinstance(over, CategoricalDistribution):
        return trial.suggest_categorical(name, over.choices)
    if isinstance(over, IntDistribution):
        return trial.suggest_int(name, over.low, over.high, log=over.log)
    assert isinstance(over, FloatDistribution)
    return trial.suggest_float(name, over.low, over.high, log=over.log)


class OneThreadGPSampler(GPSampler):
    """Optuna's sampler by a Gaussian process, limited to one thread; its suggestions are the same."""

    def sample_relative(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Optuna's suggestion, in one thread."""
        with one_thread():
            return super().sample_relative(*args, **options)


class StudyJournal(Callback):
    """The study in a file, for optuna-dashboard, reports and later searches: it gets each trial that has ended.

    Errors are swallowed, because Tune would end the search over them.
    """

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
        for name, value in self._searcher.storage.get_study_system_attrs(study._study_id).items():
            journal.set_study_system_attr(0, name, value)
        return journal


def in_file(trial: FrozenTrial) -> FrozenTrial:
    """A trial as people read it: one that diverged is pruned, not complete with the worst value as for samplers."""
    if not (trial.user_attrs.get("diverged") and trial.state == TrialState.COMPLETE):
        return trial
    pruned, values = copy.copy(trial), trial.intermediate_values
    pruned.state, pruned.values = TrialState.PRUNED, [values[max(values)]] if values else None
    return pruned
