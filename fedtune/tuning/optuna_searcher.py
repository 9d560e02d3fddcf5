"""Optuna as Tune's searcher, told the truth about how trials ended; and what it suggested, written down."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from fedtune.core.metrics import METRIC, MODE, OBJECTIVES
from fedtune.tuning.space import Condition, Config, met

WORST = 0.0  # of that metric
RESULT = {"seconds": "time_total_s"}  # Tune's name for it: in our rows "seconds" are a round's


class Optuna(OptunaSearch):
    """Ray's OptunaSearch, telling Optuna how trials ended, and first of all the default configuration as it is.

    Ray's tells every stopped trial as complete, with the value of the round at which it was stopped, so that a sampler
    holds a low accuracy of round 3 against a high one of round 60, or takes a trial that was stopped for being bad for
    one that communicates little.  Here a stopped trial is pruned (with one objective its rounds were reported one by
    one; Optuna has no such reports for two), a diverged one complete with the worst value there is, a failed one
    failed.  With two objectives a diverged trial is pruned as well, which samplers rank behind every complete one:
    there is no worst amount of communication, and the little that it had would put it on the front.

    The first trials may have values that the space, and so Optuna, cannot hold: a range on a log scale has no 0.
    Optuna is told the nearest instead.

    It leans on three attributes of Ray's class (_ot_study, _ot_trials, _completed_trials), hence the pinned Ray.
    """

    def __init__(
        self, objectives: Sequence[str], outside: Sequence[Config], log: Path | None = None, **options: Any
    ) -> None:
        """outside: the first trials' values as they are played.  log: where suggestions are written down."""
        modes = [OBJECTIVES[o] for o in objectives]
        one = len(modes) == 1
        super().__init__(metric=METRIC if one else list(objectives), mode=modes[0] if one else modes, **options)
        self.objectives, self.log, self._outside = tuple(objectives), log, list(outside)
        self._heard: dict[str, int] = {}  # trial -> the last round it told; after a resume some are played again

    def suggest(self, trial_id: str) -> dict | None:
        """The next configuration."""
        found = super().suggest(trial_id)
        if found is None:
            return None
        self._ot_trials[trial_id].set_user_attr("trial", trial_id)
        if self._outside:
            found |= self._outside.pop(0)
        if self.log:
            with self.log.open("a") as file:
                file.write(json.dumps({"trial": trial_id, "config": found}) + "\n")
        return found

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """A round's value, once."""
        if result["training_iteration"] <= self._heard.get(trial_id, 0):
            return
        self._heard[trial_id] = result["training_iteration"]
        super().on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Tell Optuna how it ended."""
        if trial_id in self._completed_trials:
            return
        state, values = self._how(result, error)
        if result and METRIC in result and not result.get("diverged"):
            self.on_trial_result(trial_id, result)  # its last round, which Tune tells only here
        study: Any = self._ot_study
        if result and result.get("diverged"):
            self._ot_trials[trial_id].set_user_attr("diverged", True)
        study.tell(self._ot_trials[trial_id], values, state=state)
        self._completed_trials.add(trial_id)

    def _how(self, result: dict | None, error: bool) -> tuple[TrialState, list[float] | None]:
        """The state and values of an ended trial; a pruned one's value is the last that it reported."""
        if error or not result or METRIC not in result:
            return TrialState.FAIL, None
        if result.get("diverged") and len(self.objectives) == 1:
            return TrialState.COMPLETE, [WORST]
        if not result.get("complete"):
            return TrialState.PRUNED, None
        return TrialState.COMPLETE, [result[RESULT.get(o, o)] for o in self.objectives]

    def learn(self, path: Path, complete: bool = True, but: Collection[str] = ()) -> None:
        """Begin with the ended trials of an exported study, `but` these.  complete False: ours last longer."""
        storage = JournalStorage(JournalFileBackend(str(path)))
        earlier = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
        told = earlier.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
        told = [t for t in told if t.user_attrs.get("trial") not in but]
        for trial in told:
            if not complete and not trial.user_attrs.get("diverged"):
                trial.state = TrialState.PRUNED
        cast(optuna.Study, self._ot_study).add_trials(told)

    def export(self, path: Path) -> None:
        """Write the study as an Optuna journal, which optuna-dashboard opens."""
        path.unlink(missing_ok=True)
        journal, study = JournalStorage(JournalFileBackend(str(path))), cast(optuna.Study, self._ot_study)
        optuna.copy_study(from_study_name=study.study_name, from_storage=study._storage, to_storage=journal)


class Conditional:
    """A space some of whose hyperparameters exist only where others have certain values, as Optuna asks for one.

    Called with a trial it suggests them in order.  Tune pickles the searcher, so this is a class and no closure.
    """

    def __init__(self, domains: dict[str, Domain], conditions: dict[str, Condition]) -> None:
        """conditions: of those that have one; what they look at stands before them in domains."""
        self.distributions = OptunaSearch.convert_search_space(domains)
        self.conditions = conditions

    def __call__(self, trial: optuna.Trial) -> None:
        """Suggest a configuration."""
        chosen: Config = {}
        for name, d in self.distributions.items():
            if not met(self.conditions.get(name, {}), chosen):
                continue
            if isinstance(d, FloatDistribution):
                chosen[name] = trial.suggest_float(name, d.low, d.high, step=d.step, log=d.log)
            elif isinstance(d, IntDistribution):
                chosen[name] = trial.suggest_int(name, d.low, d.high, step=d.step, log=d.log)
            elif isinstance(d, CategoricalDistribution):
                chosen[name] = trial.suggest_categorical(name, d.choices)


class Again(Searcher):
    """What another search tried, in its order."""

    def __init__(self, tried: list[Config]) -> None:
        """tried: configurations."""
        super().__init__(metric=METRIC, mode=MODE)
        self.tried = tried
        self.numbers: dict[str, int] = {}  # trial -> its place in that order

    def suggest(self, trial_id: str) -> Any:
        """The next of them."""
        if len(self.numbers) == len(self.tried):
            return Searcher.FINISHED
        number = self.numbers.setdefault(trial_id, len(self.numbers))
        return dict(self.tried[number])

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Nothing is learnt."""


class AsFar(FIFOScheduler):
    """Ends every trial of `Again` in the round in which it ended then."""

    def __init__(self, searcher: Again, rounds: list[int]) -> None:
        """rounds: of each, in the searcher's order."""
        super().__init__()
        self.searcher, self.rounds = searcher, rounds

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        """Stop or go on."""
        last = self.rounds[self.searcher.numbers[trial.trial_id]]
        return self.STOP if result["training_iteration"] >= last else self.CONTINUE
