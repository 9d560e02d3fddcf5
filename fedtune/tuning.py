"""Schedulers and searchers by name: thin makers over Ray Tune's and Optuna's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Categorical, Float, Integer

from fedtune.errors import UserError, unknown
from fedtune.space import Config, Space

METRIC, MODE = "val_acc", "max"  # selection sees validation only
WORST = 0.0  # of that metric
SCHEDULERS = ("asha", "hyperband", "median", "pbt", "none")
REDUCTION = 3  # one of three goes on from a rung: Li et al., arXiv:1810.05934 use 4, with few trials 3 keeps more


def _cmaes(seed: int) -> BaseSampler:
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "cmaes": _cmaes,
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}
SEARCHERS = (*SAMPLERS, "grid")


def scheduler(name: str, rounds: int, grace: int, space: Space) -> TrialScheduler:
    """The scheduler of that name; none judges a trial before round `grace`.

    asha       asynchronous successive halving: rungs at grace · 3^i (Li et al., MLSys 2020, arXiv:1810.05934)
    hyperband  the same in three brackets with different first rungs.  Asynchronous: Ray's synchronous one pauses trials
               until a bracket is full, which under a limit of concurrent trials never ends
    median     stops what is worse than the median of the running means
    pbt        population based training: every `grace` rounds the worst quarter copies the best and perturbs it
    none       every trial runs to its end
    """
    if name not in SCHEDULERS:
        raise unknown("scheduler", name, SCHEDULERS)
    time: dict[str, Any] = {"time_attr": "training_iteration"}
    grace = min(grace, rounds)
    if name in ("asha", "hyperband"):
        brackets = 1 if name == "asha" else 3
        return AsyncHyperBandScheduler(
            **time, max_t=rounds, grace_period=grace, reduction_factor=REDUCTION, brackets=brackets
        )
    if name == "median":
        return MedianStoppingRule(**time, grace_period=grace, min_samples_required=3)
    if name == "pbt":
        lists = {n: list(d.categories) for n, d in space.domains.items() if isinstance(d, Categorical)}
        choices: dict[str, Any] = space.domains | lists  # Ray multiplies what is no list
        return PopulationBasedTraining(
            **time, perturbation_interval=grace, hyperparam_mutations=choices, custom_explore_fn=Clamp(space)
        )
    return FIFOScheduler()


class Clamp:
    """Population based training multiplies what it copies by 0.8 or 1.2; this brings it back into the space."""

    def __init__(self, space: Space) -> None:
        """space: of ranges."""
        self.space = space

    def __call__(self, config: Config) -> Config:
        """The configuration with every range's value inside its range."""
        for name, domain in self.space.domains.items():
            if isinstance(domain, Integer):
                config[name] = min(max(round(config[name]), domain.lower), domain.upper - 1)
            elif isinstance(domain, Float):
                config[name] = min(max(config[name], domain.lower), domain.upper)
        return config


def rungs(name: str, rounds: int, grace: int) -> list[int]:
    """The rounds at which the scheduler may stop trials (its first bracket's)."""
    out, t = [], min(grace, rounds)
    while name in ("asha", "hyperband") and t < rounds:
        out.append(t)
        t *= REDUCTION
    return out


class Optuna(OptunaSearch):
    """Ray's OptunaSearch, telling Optuna how trials ended, and first of all the default configuration as it is.

    Ray's tells every stopped trial as complete, with the value of the round at which it was stopped, so that a sampler
    holds a low accuracy of round 3 against a high one of round 60.  Here a stopped trial is pruned (its rounds were
    reported one by one), a diverged one complete with the worst value there is, a failed one failed.
    The first trial may have values that the space, and so Optuna, cannot hold: a range on a log scale has no 0.  Optuna
    is told the nearest instead.

    It leans on three attributes of Ray's class (_ot_study, _ot_trials, _completed_trials), hence the pinned Ray.
    """

    def __init__(self, rounds: int, outside: Config, **options: Any) -> None:
        """rounds: of a trial that was not stopped.  outside: the first trial's values as they are played."""
        super().__init__(**options)
        self._rounds, self._outside = rounds, outside
        self._heard: dict[str, int] = {}  # trial -> the last round it told; after a resume some are played again

    def suggest(self, trial_id: str) -> dict | None:
        """The next configuration."""
        found = super().suggest(trial_id)
        if found is None:
            return None
        self._ot_trials[trial_id].set_user_attr("trial", trial_id)
        outside, self._outside = self._outside, {}
        return found | outside

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        """A round's value, once."""
        if result["training_iteration"] > self._heard.get(trial_id, 0):
            self._heard[trial_id] = result["training_iteration"]
            super().on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Tell Optuna how it ended."""
        if trial_id in self._completed_trials:
            return
        state, value = _how(result, error, self._rounds)
        study: Any = self._ot_study
        study.tell(self._ot_trials[trial_id], value, state=state)
        self._completed_trials.add(trial_id)

    def learn(self, path: Path) -> None:
        """Begin with the ended trials of an exported study."""
        earlier = optuna.load_study(study_name=None, storage=JournalStorage(JournalFileBackend(str(path))))
        cast(optuna.Study, self._ot_study).add_trials(
            earlier.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
        )

    def export(self, path: Path) -> None:
        """Write the study as an Optuna journal, which optuna-dashboard opens."""
        path.unlink(missing_ok=True)
        journal, study = JournalStorage(JournalFileBackend(str(path))), cast(optuna.Study, self._ot_study)
        optuna.copy_study(from_study_name=study.study_name, from_storage=study._storage, to_storage=journal)


def _how(result: dict | None, error: bool, rounds: int) -> tuple[TrialState, float | None]:
    """The state and value of an ended trial; a pruned one's value is the last that it reported."""
    if error or not result or METRIC not in result:
        return TrialState.FAIL, None
    if result.get("diverged"):
        return TrialState.COMPLETE, WORST
    if result["training_iteration"] < rounds:
        return TrialState.PRUNED, None
    return TrialState.COMPLETE, result[METRIC]


def searcher(
    name: str, space: Space, points: list[Config], outside: Config, rounds: int, seed: int, study: str, pbt: bool
) -> Searcher | SearchAlgorithm:
    """The searcher of that name over the space; `points` are tried first, in order, the first with values `outside`."""
    if name not in SEARCHERS:
        raise unknown("searcher", name, SEARCHERS)
    if pbt:  # population based training moves configurations itself and wants them drawn at random
        return BasicVariantGenerator(points_to_evaluate=points, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = SAMPLERS["random" if name == "grid" else name](seed)
    domains: dict[str, Any] = dict(space.domains or _domains(points))
    return Optuna(
        rounds, outside, space=domains, metric=METRIC, mode=MODE, points_to_evaluate=points or None, sampler=sampler,
        study_name=study,
    )  # fmt: skip


def remember(scheduler: TrialScheduler | None, seen: Iterable[tuple[str, int, float]]) -> None:
    """Tell a new scheduler what trials reached in another driver's time, as Ray does not keep it: rungs of one bracket.

    seen: trial, round and metric, in the order of time.  Other schedulers know only what comes after.
    """
    if isinstance(scheduler, AsyncHyperBandScheduler) and len(scheduler._brackets) == 1:
        for name, round, value in seen:
            trial: Any = SimpleNamespace(trial_id=name)
            scheduler._brackets[0].on_result(trial, round, value)


def _domains(points: list[Config]) -> dict[str, Categorical]:
    """A grid's points as choices, so that Optuna can hold them; what it draws beyond them is never asked for."""
    names = dict.fromkeys(n for p in points for n in p)
    return {n: Categorical(list(dict.fromkeys(p[n] for p in points))) for n in names}


def require_combination(searcher_name: str, scheduler_name: str, space: Space, structural: tuple[str, ...]) -> None:
    """UserError for a searcher, scheduler and space that do not go together."""
    if searcher_name not in SEARCHERS:
        raise unknown("searcher", searcher_name, SEARCHERS)
    if scheduler_name not in SCHEDULERS:
        raise unknown("scheduler", scheduler_name, SCHEDULERS)
    if space.is_grid and searcher_name != "grid":
        raise UserError(
            f"a grid is gone through point by point, but the searcher is {searcher_name!r}; "
            "use --searcher grid, or a space with ranges"
        )
    if scheduler_name == "pbt":
        if searcher_name != "random":
            raise UserError(
                "population based training draws its population at random and moves it itself, but the searcher is "
                f"{searcher_name!r}; use --searcher random"
            )
        fixed = [n for n in space.names if n in structural]
        if fixed:
            raise UserError(
                f"population based training copies weights between trials, but {', '.join(fixed)} changes their shape; "
                f"pin it with --set {fixed[0]}=VALUE"
            )
