"""Run a search with Ray Tune: from the start, from where its last driver stopped, or after an earlier search."""

from __future__ import annotations

import pickle
import signal
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher

from fedtune.cluster import gpu_share, local_ray, ray_internals, ray_start
from fedtune.cluster.prometheus import Gauges
from fedtune.core import interrupting
from fedtune.core.objectives import TOTALS, Goal
from fedtune.core.terminal import say
from fedtune.runs import disk, logs, pareto
from fedtune.runs.files import RunFiles
from fedtune.tuning import saved_state, schedulers, searchers
from fedtune.tuning import space as spaces
from fedtune.tuning.callbacks.live_view import LiveView
from fedtune.tuning.callbacks.trackers import TrialLogger
from fedtune.tuning.options.search import TENSORBOARD
from fedtune.tuning.optuna_searcher import OptunaSearcher, StudyJournal
from fedtune.tuning.plan import EarlierTrial, StartedSearch
from fedtune.tuning.promotion import Promotion, RunningLimit
from fedtune.tuning.space_facts import key
from fedtune.tuning.trainable import FederatedTrainable
from fedtune.user_code.user_files import plain_name

Row = dict[str, Any]  # what a trial reported


class ResumableLimit(ConcurrencyLimiter):
    """Ray's limit on trials at once, but the one that a resumed search asks for, not the one that was saved."""

    def get_state(self) -> dict:
        """What Ray saves of the limit."""
        return {name: value for name, value in super().get_state().items() if name != "max_concurrent"}


class TrialRows(tune.Callback, Mapping[str, list[Row]]):
    """Every result of every trial as the driver receives it, in the order of their first ones.

    Those of a trial that has ended are packed: sixty rounds as dictionaries are 240 kB, packed 17 kB.  Tune's own log
    of a trial is no substitute: population based training rewrites it from a stale copy.
    """

    def __init__(self, before: Mapping[str, list[Row]] | None = None, goal: Collection[str] = ()) -> None:
        """before: results that an earlier driver received, by trial.  goal: the objectives and constraints."""
        self._open: dict[str, list[Row]] = {}
        self._packed = {trial: _pack(some) for trial, some in (before or {}).items()}
        self._goal = goal

    def __getitem__(self, trial: str) -> list[Row]:
        """A trial's rows, as a new list."""
        packed = self._packed[trial]
        return (pickle.loads(zlib.decompress(packed)) if packed else []) + self._open.get(trial, [])

    def __iter__(self) -> Iterator[str]:
        """The trials."""
        return iter(self._packed)

    def __len__(self) -> int:
        """How many trials there are."""
        return len(self._packed)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Keep a result that a trial reported."""
        self._packed.setdefault(trial.trial_id, b"")
        self._open.setdefault(trial.trial_id, []).append(result)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """A trial has ended; it may still go on."""
        if trial.trial_id in self._open:
            self._packed[trial.trial_id] = _pack(self[trial.trial_id])
            del self._open[trial.trial_id]
        ray_internals.forget_averages(trial, self._goal)

    on_trial_error = on_trial_complete


def _pack(rows: list[Row]) -> bytes:
    return zlib.compress(pickle.dumps(rows), 1)


class TensorBoard(TBXLoggerCallback):
    """Ray's files for TensorBoard, of trained rounds."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict) -> None:
        """Write a round; the row of a diverged trial is not one."""
        if not result.get("diverged"):
            super().log_trial_result(iteration, trial, result)


def fit(
    s: StartedSearch,
    resumed: bool = False,
    watch: disk.DiskWatch | None = None,
    tools: Sequence[TrialLogger] = (),
    also: Sequence[tune.Callback] = (),
) -> tuple[tune.ResultGrid, TrialRows]:
    """Run the search, or what its last driver left of it.  Returns Tune's results, and all that each trial reported.

    tools: experiment trackers.  also: further callbacks.
    """
    p = s.plan
    trainable = _trainable(s)
    with ray_start.settings(), ray_internals.searching():
        before: dict[str, list[Row]] = {}
        if resumed and saved_state.require_state(p.folder):
            before = saved_state.prepared(p.folder)
            tuner = _restored(s, trainable, before)
            if watch:
                watch.resumed = True
        else:
            tuner = _new(s, trainable)
        if resumed:  # not before Ray has restored it; what an earlier driver made of the trials until then
            for table in (p.files.trials_file, p.files.rounds_file, p.files.front_file, p.files.best_file):
                table.unlink(missing_ok=True)
        rows = TrialRows(before, [o.attribute for o in p.goal.objectives])
        for tool in tools:
            tool.rows = rows
            if before:
                tool.catch_up(p.folder)
        view = LiveView(p, before)
        searcher = _innermost(tuner)
        journal = [StudyJournal(searcher, p.files.study_file)] if isinstance(searcher, OptunaSearcher) else []
        ray_internals.callbacks(tuner)[:] = [
            JsonLoggerCallback(),
            rows,
            Gauges(p.folder.name, p.workload.name, p.goal.first),
            view,
            *([TensorBoard()] if TENSORBOARD in p.options.logger else []),
            *([watch] if watch else []),
            *journal,
            *tools,
            *also,
        ]
        copied = ray_internals.states_copied_by(saved_state.StateCopies().copy)
        with interrupting.restored(signal.SIGINT), copied, view.window, local_ray.spoken_to():
            grid = tuner.fit()
        for file in journal:
            file.on_trial_complete()
    return grid, rows


def _trainable(s: StartedSearch) -> Any:
    p = s.plan
    given = tune.with_parameters(
        FederatedTrainable,
        workload=s.workload,
        data=s.prepared,
        budget=p.budget,
        onward={key(t.config): (t.checkpoint, t.seconds) for t in p.continued if t.checkpoint},
        warm="seconds" in (p.budget.unit, *p.goal.names),
        goal=p.goal,
        rungs=schedulers.rungs(p.scheduler, p.budget.limit, p.grace),
        search=p.folder.name,
        outputs=p.files.outputs_folder,
    )
    needs = {"CPU": p.options.cpus_per_trial} | ({"GPU": s.gpus} if s.gpus else {})
    return ray_internals.known_as_itself(tune.with_resources(given, tune.PlacementGroupFactory([needs])))


def _restored(s: StartedSearch, trainable: Any, before: dict[str, list[Row]]) -> tune.Tuner:
    """A search as Ray restores it, with the state that Ray does not save.  before: what trials reported until now."""
    p = s.plan
    kind = schedulers.find(p.scheduler)
    if not saved_state.readable(p.folder / ray_internals.TUNER_FILE):
        _new(s, trainable)  # writes Ray's settings
    if not kind.moves_hyperparameters:  # such trials go on from others' checkpoints
        saved_state.drop_unlogged(p.folder, before, p.workload.trainer.saved_round, p.workload.traits.report_every)
    tuner = tune.Tuner.restore(str(p.folder), trainable=trainable, resume_errored=True)
    ray_internals.limit_trials(tuner, s.concurrent)
    searcher = _innermost(tuner)
    if isinstance(searcher, OptunaSearcher):
        searcher.log = p.files.suggestions_file
    if kind.remember:
        earlier_results = logs.metric_history(before, p.budget.attribute, p.goal.attribute)
        kind.remember(ray_internals.tune_config(tuner).scheduler, p.budget, earlier_results)
    elif p.scheduler != "none":
        say(f"note: Ray does not save the state of {p.scheduler}; it judges trials by results from now on")
    return tuner


def _new(s: StartedSearch, trainable: Any) -> tune.Tuner:
    p = s.plan
    population, name = schedulers.find(p.scheduler).moves_hyperparameters, plain_name(p.workload.name)
    if p.replayed:
        searcher: Any = ReplaySearcher(p.replayed, p.goal)
        scheduler: Any = StopAtRecordedRound(searcher)
    else:
        searcher, scheduler = _searching(s)
    if isinstance(searcher, BasicVariantGenerator):
        searcher.max_concurrent = s.concurrent
    else:
        limit = RunningLimit if isinstance(scheduler, Promotion) else ResumableLimit
        searcher = limit(searcher, s.concurrent)
    return tune.Tuner(
        trainable,
        param_space=dict(p.space.domains) if population else None,
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=p.trials,
            max_concurrent_trials=s.concurrent,
            time_budget_s=p.options.time_budget,
            reuse_actors=True,  # 0.2 s a trial instead of 1.7 s
            trial_name_creator=lambda trial: f"{name}-{trial.trial_id}",
            trial_dirname_creator=lambda trial: f"{name}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name=p.folder.name,
            storage_path=str(p.folder.parent),
            callbacks=[],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=3),  # a dead worker's or node's trials go on elsewhere
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4 if population else 1),  # others copy from them
        ),
    )


def _innermost(tuner: tune.Tuner) -> Any:
    searcher = ray_internals.tune_config(tuner).search_alg
    return searcher.searcher if isinstance(searcher, ConcurrencyLimiter) else searcher


def _searching(s: StartedSearch) -> tuple[Any, Any]:
    p = s.plan
    kind, of_earlier = schedulers.find(p.scheduler), RunFiles(p.extended or p.folder)
    earlier = pd.read_parquet(of_earlier.rounds_file) if p.extended else pd.DataFrame({"trial": []})
    inside = [(point, {}) if p.space.is_grid else spaces.inside(p.space, point) for point in p.points]
    searcher = searchers.searcher(  # another seed, otherwise an extended search would repeat its samples
        name=p.searcher,
        space=p.space,
        points=[point for point, _ in inside],
        outside=[outside for _, outside in inside],
        seed=p.workload.seed + p.draws + earlier["trial"].nunique(),
        study=p.folder.name,
        goal=p.goal,
        log=p.files.suggestions_file,
        population=kind.moves_hyperparameters,
        once=True,
    )
    scheduler = schedulers.scheduler(p.scheduler, p.budget, p.grace, p.space, p.goal, p.workload.rounds)
    scheduler = gpu_share.with_more_memory(scheduler, s.gpus)
    if p.extended and isinstance(searcher, OptunaSearcher):
        continued = [t.trial for t in p.continued]
        searcher.learn(of_earlier.study_file, complete=not continued, but=continued)
        if kind.remember and not continued:
            kind.remember(scheduler, p.budget, _as_reported(earlier))
    return searcher, scheduler


def _as_reported(rounds: pd.DataFrame) -> list[Row]:
    """The rows of a table of rounds as trials reported them."""
    names = {"trial": "trial_id", **TOTALS}
    frame = pareto.with_totals(rounds).rename(columns=names).assign(training_iteration=rounds["round"])
    return [{n: v for n, v in row.items() if pd.notna(v)} for row in frame.to_dict("records")]


class ReplaySearcher(Searcher):
    """Suggests what another search tried, in its order."""

    def __init__(self, earlier: Sequence[EarlierTrial], goal: Goal) -> None:
        """earlier: the other search's trials."""
        super().__init__(metric=goal.attribute, mode=goal.first.mode)
        self.earlier = earlier
        self.replayed: dict[str, EarlierTrial] = {}  # by the trial that repeats it

    def suggest(self, trial_id: str) -> Any:
        """The next configuration, until there is none left."""
        if len(self.replayed) == len(self.earlier):
            return Searcher.FINISHED
        return dict(self.replayed.setdefault(trial_id, self.earlier[len(self.replayed)]).config)

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Nothing is learnt from how a trial ends."""


class StopAtRecordedRound(FIFOScheduler):
    """Ends every trial of a `ReplaySearcher` in the round in which it ended then."""

    def __init__(self, searcher: ReplaySearcher) -> None:
        """searcher: it knows which trial repeats which."""
        super().__init__()
        self.searcher = searcher

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict) -> str:
        """Stop the trial in its last round."""
        last = self.searcher.replayed[trial.trial_id].rounds
        return self.STOP if result["training_iteration"] >= last else self.CONTINUE
