"""Tune at work on a plan: from the start, from where its last driver stopped, or on from an earlier run."""

from __future__ import annotations

import os
import signal
from typing import Any

import pandas as pd
from ray import tune
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from ray.tune.search import BasicVariantGenerator

from fedtune.cluster import gpu_share, ray_start
from fedtune.cluster.prometheus import Gauges
from fedtune.core import metrics
from fedtune.core.terminal import say
from fedtune.data.federation import Federation
from fedtune.runs import disk, tables
from fedtune.tuning import schedulers
from fedtune.tuning.live_view import Progress
from fedtune.tuning.optuna_searcher import Again, AsFar
from fedtune.tuning.plan import Plan
from fedtune.tuning.promotion import Limit, Promotion, Slots
from fedtune.tuning.trainable import FederatedTrainable, key


def fit(
    p: Plan, dealt: list[Federation], concurrent: int, resumed: bool, watch: disk.Watch | None = None
) -> tuple[tune.ResultGrid, dict[str, list[dict[str, Any]]]]:
    """Run the search, or what is left of it.  Returns Tune's results, and all that each trial reported."""
    bundle = tune.PlacementGroupFactory([{"CPU": p.cpus, "GPU": p.gpus} if p.gpus else {"CPU": p.cpus}])
    trainable = tune.with_resources(
        tune.with_parameters(
            FederatedTrainable,
            experiment=p.experiment,
            data=dealt,
            budget=p.budget,
            onward={key(t.config): (t.checkpoint, t.seconds) for t in p.onward if t.checkpoint},
            warm="seconds" in (p.budget.unit, *p.objectives),
        ),
        bundle,
    )
    return drive(p, trainable, concurrent, resumed, watch)


def drive(
    p: Plan, trainable: Any, concurrent: int, resumed: bool = False, watch: disk.Watch | None = None
) -> tuple[tune.ResultGrid, dict[str, list[dict[str, Any]]]]:
    """Tune at work on a trainable, from the start or from where its last driver stopped."""
    title = f"{p.experiment.algorithm} on {p.scenario}"
    progress = Progress(title, p.trials, p.experiment.scenario.rounds, p.space.names)
    kept: Any
    before: dict[str, list[dict[str, Any]]] = {}
    if resumed and disk.require_state(p.folder):
        disk.set_aside(p.folder)
        disk.forget_decisions(p.folder)
        before = tables.logged(p.folder)
        if not disk.tuner_readable(p.folder):
            _tuner(p, trainable, concurrent, progress)  # writes it
        if p.scheduler != "pbt":  # whose trials go on from others' checkpoints
            disk.drop_unlogged(p.folder, before)
        if watch:
            watch.resumed = True
        tuner = tune.Tuner.restore(str(p.folder), trainable=trainable, resume_errored=True)
        kept = tuner._local_tuner  # what Ray brought back; the scheduler it does not
        kept._tune_config.max_concurrent_trials = kept._tune_config.search_alg.max_concurrent = concurrent
        progress = next(c for c in kept._run_config.callbacks if isinstance(c, Progress))
        schedulers.remember(kept._tune_config.scheduler, tables.seen(before, p.budget.attribute))
        if p.scheduler in ("hyperband", "median", "pbt"):
            say(f"note: Ray does not keep what {p.scheduler} has seen; it judges by what comes from now on")
    else:
        tuner = _tuner(p, trainable, concurrent, progress)
    kept = tuner._local_tuner
    kept._run_config.callbacks.append(Gauges(p.name, p.experiment.algorithm))
    if p.tensorboard:
        kept._run_config.callbacks.append(TBXLoggerCallback())
    if watch:
        kept._run_config.callbacks.append(watch)
    # a batch system's or container's way to end a job is Ctrl-C to Tune: what was found is kept
    before_us = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        with progress, ray_start.settings():
            grid = tuner.fit()
    finally:
        signal.signal(signal.SIGTERM, before_us)
    searcher = kept._tune_config.search_alg
    searcher = searcher.searcher if isinstance(searcher, Limit) else searcher
    if isinstance(searcher, schedulers.Optuna):
        searcher.export(p.folder / "study.journal")
    return grid, {t: before.get(t, []) + progress.reported.get(t, []) for t in {**before, **progress.reported}}


def _tuner(p: Plan, trainable: Any, concurrent: int, progress: Progress) -> tune.Tuner:
    pbt = p.scheduler == "pbt"
    searcher, scheduler = _again(p) if p.again else _searching(p, pbt)
    return tune.Tuner(
        trainable,
        param_space=dict(p.space.domains) if pbt else None,
        tune_config=tune.TuneConfig(
            search_alg=_limited(searcher, scheduler, concurrent),
            scheduler=scheduler,
            num_samples=p.trials,
            max_concurrent_trials=concurrent,
            time_budget_s=p.time_budget,
            reuse_actors=True,  # 0.2 s a trial instead of 1.7 s
            trial_name_creator=lambda trial: f"{p.experiment.algorithm}-{trial.trial_id}",
            trial_dirname_creator=lambda trial: f"{p.experiment.algorithm}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name=p.name, storage_path=str(p.storage), callbacks=[JsonLoggerCallback(), progress], verbose=0,
            failure_config=tune.FailureConfig(max_failures=3),  # a dead worker's or node's trials go on elsewhere
            checkpoint_config=tune.CheckpointConfig(num_to_keep=4 if pbt else 1),  # PBT's others copy from them
        ),
    )  # fmt: skip


def _limited(searcher: Any, scheduler: Any, concurrent: int) -> Any:
    """The searcher, of which Ray asks no more than so many trials at once."""
    if isinstance(searcher, BasicVariantGenerator):
        searcher.max_concurrent = concurrent
        return searcher
    return (Slots if isinstance(scheduler, Promotion) else Limit)(searcher, concurrent)


def _again(p: Plan) -> tuple[Any, Any]:
    """What plays another run's trials once more."""
    searcher = Again([t.config for t in p.again])
    return searcher, AsFar(searcher, [t.rounds for t in p.again])


def _searching(p: Plan, pbt: bool) -> tuple[Any, Any]:
    """What chooses configurations, and what ends trials, told of an earlier run if there is one."""
    played = pd.read_parquet(p.earlier / "rounds.parquet") if p.earlier else pd.DataFrame({"trial": []})
    searcher = schedulers.searcher(  # another seed, or an extended search would draw what it drew before
        p.searcher, p.space, p.points, p.outside, p.experiment.seed + played["trial"].nunique(), p.name, p.objectives,
        p.folder / tables.SUGGESTIONS, pbt,
    )  # fmt: skip
    scheduler = gpu_share.with_more_memory(schedulers.scheduler(p.scheduler, p.budget, p.grace, p.space), p.gpus)
    if p.earlier and isinstance(searcher, schedulers.Optuna):
        on = [t.trial for t in p.onward]
        searcher.learn(p.earlier / "study.journal", complete=not on, but=on)
        if not on:
            used = played["round" if p.budget.unit == "rounds" else "spent"]
            schedulers.remember(scheduler, zip(played["trial"], used, played[metrics.METRIC], strict=True))
    return searcher, scheduler
