"""Run a plan with Ray Tune: from the start, from where its last driver stopped, or continuing an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.search import BasicVariantGenerator

from fedtune.cluster import gpu_share, local_ray, ray_internals, ray_start
from fedtune.cluster.prometheus import Gauges
from fedtune.core import interrupting
from fedtune.core.metrics import JUDGED
from fedtune.core.objectives import Goal
from fedtune.core.terminal import say
from fedtune.runs import disk, logs, pareto
from fedtune.runs.files import RunFiles
from fedtune.tuning import saved_state, schedulers, searchers
from fedtune.tuning.callbacks.live_view import LiveView
from fedtune.tuning.callbacks.recorder import ResultRecorder, TrialRows
from fedtune.tuning.callbacks.study_journal import StudyJournal
from fedtune.tuning.callbacks.trackers import TrialLogger
from fedtune.tuning.optuna_searcher import OptunaSearcher
from fedtune.tuning.plan import SearchPlan
from fedtune.tuning.promotion import Promotion, ResumableLimit, RunningLimit
from fedtune.tuning.replaying import ReplaySearcher, StopAtRecordedRound
from fedtune.tuning.trainable import FederatedTrainable, key, known_as_itself
from fedtune.tuning.unkeepable import Unkeepable
from fedtune.user_code.user_files import plain_name

Rows = dict[str, list[dict[str, Any]]]  # what each trial reported


class TensorBoard(TBXLoggerCallback):
    """Ray's files for TensorBoard, of trained rounds."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict) -> None:
        """Write a round; the row of a diverged trial is not one."""
        if not result.get("diverged"):
            super().log_trial_result(iteration, trial, result)


def fit(
    p: SearchPlan,
    data: list[Any],
    concurrent: int,
    resumed: bool,
    watch: disk.DiskWatch | None = None,
    tools: Sequence[TrialLogger] = (),
    show: bool = True,
    also: Sequence[tune.Callback] = (),
) -> tuple[tune.ResultGrid, TrialRows]:
    """Run the search, or what is left of it.  Returns Tune's results, and all that each trial reported."""
    bundle = tune.PlacementGroupFactory([{"CPU": p.cpus, "GPU": p.gpus} if p.gpus else {"CPU": p.cpus}])
    trainable = tune.with_resources(
        tune.with_parameters(
            FederatedTrainable,
            workload=p.workload,
            data=data,
            budget=p.budget,
            onward={key(t.config): (t.checkpoint, t.seconds) for t in p.continued if t.checkpoint},
            warm="seconds" in (p.budget.unit, *p.goal.names),
            goal=p.goal,
            rungs=schedulers.rungs(p.scheduler, p.budget.limit, p.grace),
            search=p.name,
            outputs=p.files.outputs_folder,
        ),
        bundle,
    )
    return drive(
        p=p,
        trainable=known_as_itself(trainable),
        concurrent=concurrent,
        resumed=resumed,
        watch=watch,
        tools=tools,
        show=show,
        also=also,
    )


def drive(
    p: SearchPlan,
    trainable: Any,
    concurrent: int,
    resumed: bool = False,
    watch: disk.DiskWatch | None = None,
    tools: Sequence[TrialLogger] = (),
    show: bool = True,
    also: Sequence[tune.Callback] = (),
) -> tuple[tune.ResultGrid, TrialRows]:
    """Run Tune on a trainable, from the start or from where its last driver stopped.

    tools: experiment trackers.  show: whether to draw the progress.  also: further callbacks.
    """
    with ray_start.settings(), ray_internals.searching():
        before: Rows = {}
        if resumed and saved_state.require_state(p.folder):
            before = saved_state.prepared(p.folder)
            tuner = _restored(p, trainable, concurrent, before)
            if watch:
                watch.resumed = True
        else:
            tuner = _new(p, trainable, concurrent)
        recorder = ResultRecorder(before, [o.attribute for o in p.goal.objectives])
        for tool in tools:
            tool.rows = recorder.rows
            tool.catch_up(p.folder)
        view = LiveView(p, before)
        searcher = _innermost(tuner)
        journal = StudyJournal(searcher, p.files.study_file) if isinstance(searcher, OptunaSearcher) else None
        ray_internals.callbacks(tuner)[:] = [
            JsonLoggerCallback(),
            recorder,
            Gauges(p.name, p.workload.name, p.goal.first),
            *([view] if show else []),
            *([TensorBoard()] if p.tensorboard else []),
            *([watch] if watch else []),
            *([journal] if journal else []),
            *tools,
            *also,
        ]
        copied = ray_internals.states_copied_by(saved_state.StateCopies().copy)
        with interrupting.ctrl_c_kept(), copied, view.window if show else nullcontext(), local_ray.spoken_to():
            grid = tuner.fit()
        if journal:
            journal.on_trial_complete()
    return grid, recorder.rows


def _restored(p: SearchPlan, trainable: Any, concurrent: int, before: Rows) -> tune.Tuner:
    """A search as Ray restores it, with the state that Ray does not save.  before: what trials reported until now."""
    kind = schedulers.find(p.scheduler)
    if not saved_state.tuner_readable(p.folder):
        _new(p, trainable, concurrent)  # writes Ray's settings
    if not kind.moves_hyperparameters:  # such trials go on from others' checkpoints
        saved_state.drop_unlogged(p.folder, before, p.workload.trainer.saved_round, p.workload.traits.report_every)
    tuner = tune.Tuner.restore(str(p.folder), trainable=trainable, resume_errored=True)
    ray_internals.limit_trials(tuner, concurrent)
    searcher = _innermost(tuner)
    if isinstance(searcher, OptunaSearcher):
        searcher.log = _log(p)
    if kind.remember:
        earlier_results = logs.metric_history(before, p.budget.attribute, p.goal.attribute)
        kind.remember(ray_internals.tune_config(tuner).scheduler, p.budget, earlier_results)
    else:
        say(f"note: Ray does not save the state of {p.scheduler}; it judges trials by results from now on")
    return tuner


def _new(p: SearchPlan, trainable: Any, concurrent: int) -> tune.Tuner:
    population = schedulers.find(p.scheduler).moves_hyperparameters
    searcher, scheduler = _replaying(p) if p.replayed else _searching(p)
    return tune.Tuner(
        trainable,
        param_space=dict(p.space.domains) if population else None,
        tune_config=tune.TuneConfig(
            search_alg=_limited(searcher, scheduler, concurrent),
            scheduler=scheduler,
            num_samples=p.trials,
            max_concurrent_trials=concurrent,
            time_budget_s=p.time_budget,
            reuse_actors=True,  # 0.2 s a trial instead of 1.7 s
            trial_name_creator=lambda trial: f"{plain_name(p.workload.name)}-{trial.trial_id}",
            trial_dirname_creator=lambda trial: f"{plain_name(p.workload.name)}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name=p.name,
            storage_path=str(p.storage),
            callbacks=[],
            verbose=0,
            stop=Unkeepable(p) if p.goal.constraints else None,
            failure_config=tune.FailureConfig(max_failures=3),  # a dead worker's or node's trials go on elsewhere
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4 if population else 1),  # others copy from them
        ),
    )


def _limited(searcher: Any, scheduler: Any, concurrent: int) -> Any:
    """The searcher, limited to this many trials at once."""
    if isinstance(searcher, BasicVariantGenerator):
        searcher.max_concurrent = concurrent
        return searcher
    return (RunningLimit if isinstance(scheduler, Promotion) else ResumableLimit)(searcher, concurrent)


def _innermost(tuner: tune.Tuner) -> Any:
    """The searcher under its limit."""
    searcher = ray_internals.tune_config(tuner).search_alg
    return searcher.searcher if isinstance(searcher, ResumableLimit) else searcher


def _replaying(p: SearchPlan) -> tuple[Any, Any]:
    """The searcher and scheduler that run another search's trials once more."""
    searcher = ReplaySearcher([t.config for t in p.replayed], p.goal)
    return searcher, StopAtRecordedRound(searcher, [t.rounds for t in p.replayed])


def _searching(p: SearchPlan) -> tuple[Any, Any]:
    """The searcher and the scheduler, with the results of an earlier run if there is one."""
    kind = schedulers.find(p.scheduler)
    earlier = pd.read_parquet(RunFiles(p.earlier).rounds_file) if p.earlier else pd.DataFrame({"trial": []})
    searcher = searchers.searcher(  # another seed, otherwise an extended search would repeat its samples
        name=p.searcher,
        space=p.space,
        points=p.points,
        outside=p.outside,
        seed=p.workload.seed + p.draws + earlier["trial"].nunique(),
        study=p.name,
        goal=p.goal,
        log=_log(p),
        population=kind.moves_hyperparameters,
        once=True,
    )
    judge = schedulers.scheduler(p.scheduler, p.budget, p.grace, p.space, p.goal)
    scheduler = gpu_share.with_more_memory(judge, p.gpus)
    if p.earlier and isinstance(searcher, OptunaSearcher):
        continued = [t.trial for t in p.continued]
        searcher.learn(RunFiles(p.earlier).study_file, complete=not continued, but=continued)
        if kind.remember and not continued:
            used = earlier["round" if p.budget.unit == "rounds" else "spent"]
            kind.remember(scheduler, p.budget, zip(earlier["trial"], used, _judged(earlier, p.goal), strict=True))
    return searcher, scheduler


def _judged(rounds: pd.DataFrame, goal: Goal) -> pd.Series:
    """The value that schedulers compare, for every round of an earlier search."""
    return rounds[JUDGED] if goal.constraints else pareto.with_totals(rounds)[goal.first.name]


def _log(p: SearchPlan) -> Path:
    """The file that suggestions are written to."""
    return p.files.suggestions_file
