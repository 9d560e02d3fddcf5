"""python -m fedtune.search: algorithm + space + scenario + scheduler + searcher -> ray.tune.Tuner -> what was found."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pandas as pd
import ray
from ray import tune
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback
from rich.console import Console
from rich.table import Table

from fedtune import cli, cluster, datasets, federation, final, pareto, plan, results, shares, storage, tuning
from fedtune.budget import UNITS
from fedtune.cli import say
from fedtune.errors import UserError
from fedtune.gauges import Gauges
from fedtune.plan import Plan
from fedtune.progress import Progress, short
from fedtune.promotion import Promotion, Slots
from fedtune.space import Config, keep
from fedtune.study import Again, AsFar
from fedtune.trainable import FederatedTrainable, key


def parser() -> argparse.ArgumentParser:
    """The arguments of a search."""
    p = cli.Parser(prog="fedtune search", description="Search an algorithm's hyperparameters with Ray Tune.")
    cli.add_experiment(p)
    s = p.add_argument_group("search")
    s.add_argument("--space", default="default", metavar="NAME|FILE.py[:NAME]", help="default, paper, wide, or a file")
    s.add_argument("--trials", type=cli.positive, metavar="N", help="configurations (default 32; a grid: all of it)")
    s.add_argument("--scheduler", default="asha", help=f"one of {', '.join(tuning.SCHEDULERS)} (default asha)")
    s.add_argument("--searcher", help=f"one of {', '.join(tuning.SEARCHERS)} (default tpe; grid for a grid)")
    s.add_argument(
        "--objective", default=tuning.METRIC, metavar="A[,B]",
        help=f"{tuning.METRIC}, or it and one of {', '.join(list(tuning.OBJECTIVES)[1:])}: then a front is found",
    )  # fmt: skip
    s.add_argument("--seeds-per-trial", type=cli.positive, default=1, metavar="K", help="default 1; more: their means")
    s.add_argument("--budget-unit", default="rounds", choices=UNITS, help="what a trial uses up, and rungs lie in")
    s.add_argument("--budget", type=cli.above_zero, metavar="N", help="megabytes or seconds of a trial")
    s.add_argument("--grace", type=cli.above_zero, metavar="N", help="first rung (default: derived from the space)")
    s.add_argument("--final-seeds", type=int, default=3, metavar="N", help="fresh seeds of the final check (default 3)")
    s.add_argument("--time-budget", type=float, metavar="SECONDS", help="stop the search after this long")
    m = p.add_argument_group("machine")
    m.add_argument("--max-concurrent", type=cli.positive, metavar="N", help="trials at once (default: what fits)")
    m.add_argument("--cpus-per-trial", type=float, default=1, metavar="N", help="default 1")
    m.add_argument("--gpus-per-trial", type=shares.gpus, default=0, metavar="N", help="a fraction, or auto; default 0")
    m.add_argument("--name", help="of the run's folder (default: algorithm, scenario and time)")
    m.add_argument("--storage-path", default="runs", metavar="DIR", help="where the run's folder goes (default runs)")
    m.add_argument("--address", help="of a Ray cluster: auto, host:port or ray://host:port (default: start one here)")
    m.add_argument("--no-dashboard", action="store_true", help="do not start Ray's dashboard")
    m.add_argument(
        "--dashboard-host", default=cluster.LOOPBACK, metavar="HOST",
        help=f"where the dashboard listens (default {cluster.LOOPBACK})",
    )  # fmt: skip
    m.add_argument("--tensorboard", action="store_true", help="TensorBoard event files too; they cost time per round")
    return p


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    return conduct(plan.make(args), args, {"arguments": sys.argv[1:] if argv is None else argv})


def conduct(p: Plan, args: argparse.Namespace, record: dict[str, Any], resumed: bool = False) -> int:
    """Search, check and say what was found; the exit status.  record: what run.json holds already."""
    with ExitStack() as held:
        if resumed:
            held.enter_context(results.sole_driver(p.folder))
        return _conducted(p, args, record, resumed, held)


def _conducted(p: Plan, args: argparse.Namespace, record: dict[str, Any], resumed: bool, held: ExitStack) -> int:
    data = datasets.load(p.experiment.scenario.dataset, args.data_dir, args.download)
    seeds = range(p.experiment.seed, p.experiment.seed + p.seeds)
    dealt = [federation.deal(data, p.experiment.scenario, seed) for seed in seeds]
    storage.require_room(p.storage)
    fits = cluster.start(p.address, p.cpus, p.gpus, not args.no_dashboard, args.dashboard_host)
    began, watch = time.monotonic(), None
    try:
        if p.probe:
            p, fits = shares.settle(p, dealt)
        concurrent = p.concurrent or fits
        say(f"{p.experiment.algorithm} on {p.scenario}, space {args.space}: " + _listed(p.space.text()))
        say(f"scored: {p.experiment.validate()}")
        stops = tuning.rungs(p.scheduler, p.budget.limit, p.grace)
        say(
            f"{p.trials} trials of up to {_length(p)}, {concurrent} at once; {p.searcher}"
            + (f" for {' and '.join(p.objectives)}" if len(p.objectives) > 1 else "")
            + f", {p.scheduler}"
            + (f" with rungs at {', '.join(format(s, 'g') for s in stops)}" if stops else "")
        )
        extra = {
            "space": p.space.text(), "trials": p.trials, "searcher": p.searcher, "scheduler": p.scheduler,
            "objectives": p.objectives, "seeds_per_trial": p.seeds, "budget": p.budget._asdict(), "grace": p.grace,
            "rungs": stops, "concurrent": concurrent, "time_budget": p.time_budget,
        }  # fmt: skip
        record = results.provenance(results.command_line(), p.experiment, extra) | record
        if not resumed:  # not before: whatever is refused leaves nothing behind
            p.folder.mkdir(parents=True)
            keep(args.space, p.folder)
            held.enter_context(results.sole_driver(p.folder))
        results.write(p.folder / "run.json", record | {"state": "running"})
        held.enter_context(storage.reserved(p.folder))
        watch = storage.Watch(p.folder)
        if not args.debug:
            storage.quiet()
        try:
            grid, reported = fit(p, dealt, concurrent, resumed, watch)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            results.write(p.folder / "run.json", record | {"state": "failed", "reason": why})
            raise
        rounds, trials = results.frames(grid, reported, p.earlier, [t.trial for t in p.onward])
        rounds.to_parquet(p.folder / "rounds.parquet", index=False)
        trials.to_parquet(p.folder / "trials.parquet", index=False)
        if watch.found:
            why = f"its folder {watch.found}"
            results.write(p.folder / "run.json", record | {"state": "interrupted", "reason": why})
            raise watch.error(p.shown)
        counts = trials["status"].value_counts().to_dict()
        if len(p.objectives) > 1 and len(rounds):
            _front(p, rounds, trials)
        cut = results.cut_short(grid, p.trials)
        if cut:
            what = "time budget reached" if p.time_budget else "interrupted"
            say(f"{what}: {len(trials)} of {p.trials} trials were begun")
        record |= {"search_seconds": round(time.monotonic() - began, 1), "status": counts}
        best = results.best_trial(trials)
        if best is None:
            results.write(p.folder / "run.json", record | {"state": "nothing found"})
            reasons = [r for r in trials["reason"] if r]
            say(f"no trial reported a finite result{': ' + reasons[0].splitlines()[-1] if reasons else ''}")
            return 1
        config = {k.removeprefix(results.CONFIG): best[k] for k in best.index if k.startswith(results.CONFIG)}
        config = {k: v for k, v in p.experiment.configuration(_plain(config)).items() if k in p.space.names}
        found = {
            "trial": best["trial"], "rounds": int(best["rounds"]), "val_acc": float(best["last_val_acc"]),
            "test_acc": float(best["last_test_acc"]), "trials": len(trials), "run": p.name,
        }  # fmt: skip
        results.write(p.folder / "best.yaml", results.best_yaml(p.experiment, p.scenario, config, found))
        if cut and not p.time_budget:
            results.write(p.folder / "run.json", record | {"state": "interrupted"})
            say(f"best so far: trial {best['trial']}, {_listed(config, short)}; folder: {p.shown}")
            return 130
        checked = final.check(p, data, config)
        record |= {"final": checked.to_dict("records"), "seconds": round(time.monotonic() - began, 1)}
        results.write(p.folder / "run.json", record | {"state": "finished"})
        _summary(p, config, best, checked, counts, args.data_dir)
    except UserError:
        raise
    except Exception as error:
        if watch and watch.look():  # whatever it was, this is why
            raise watch.error(p.shown) from error
        raise
    finally:
        ray.shutdown()
    return 0


def fit(
    p: Plan, dealt: list[federation.Federation], concurrent: int, resumed: bool, watch: storage.Watch | None = None
) -> tuple[tune.ResultGrid, dict[str, list[dict[str, Any]]]]:
    """Run the search, or what is left of it.  Returns Tune's results, and all that each trial reported."""
    bundle = tune.PlacementGroupFactory([{"CPU": p.cpus, "GPU": p.gpus} if p.gpus else {"CPU": p.cpus}])
    trainable = tune.with_resources(
        tune.with_parameters(
            FederatedTrainable,
            experiment=p.experiment,
            data=dealt,
            budget=p.budget,
            onward={key(t.config): t.checkpoint for t in p.onward if t.checkpoint},
        ),
        bundle,
    )
    return drive(p, trainable, concurrent, resumed, watch)


def drive(
    p: Plan, trainable: Any, concurrent: int, resumed: bool = False, watch: storage.Watch | None = None
) -> tuple[tune.ResultGrid, dict[str, list[dict[str, Any]]]]:
    """Tune at work on a trainable, from the start or from where its last driver stopped."""
    title = f"{p.experiment.algorithm} on {p.scenario}"
    progress = Progress(title, p.trials, p.experiment.scenario.rounds, p.space.names)
    kept: Any
    before = results.logged(p.folder) if resumed else {}
    if resumed and storage.require_state(p.folder):
        if not storage.tuner_readable(p.folder):
            _tuner(p, trainable, concurrent, progress)  # writes it
        if watch:
            watch.resumed = True
        tuner = tune.Tuner.restore(str(p.folder), trainable=trainable, resume_errored=True)
        kept = tuner._local_tuner  # what Ray brought back; the scheduler it does not
        progress = next(c for c in kept._run_config.callbacks if isinstance(c, Progress))
        tuning.remember(kept._tune_config.scheduler, results.seen(before, p.budget.attribute))
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
        with progress:
            grid = tuner.fit()
    finally:
        signal.signal(signal.SIGTERM, before_us)
    searcher = kept._tune_config.search_alg
    searcher = searcher.searcher if isinstance(searcher, Slots) else searcher
    if isinstance(searcher, tuning.Optuna):
        searcher.export(p.folder / "study.journal")
    return grid, {t: before.get(t, []) + progress.reported.get(t, []) for t in {**before, **progress.reported}}


def _tuner(p: Plan, trainable: Any, concurrent: int, progress: Progress) -> tune.Tuner:
    pbt = p.scheduler == "pbt"
    searcher, scheduler = _again(p) if p.again else _searching(p, pbt)
    return tune.Tuner(
        trainable,
        param_space=dict(p.space.domains) if pbt else None,
        tune_config=tune.TuneConfig(
            search_alg=Slots(searcher, concurrent) if isinstance(scheduler, Promotion) else searcher,
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


def _again(p: Plan) -> tuple[Any, Any]:
    """What plays another run's trials once more."""
    searcher = Again([t.config for t in p.again])
    return searcher, AsFar(searcher, [t.rounds for t in p.again])


def _searching(p: Plan, pbt: bool) -> tuple[Any, Any]:
    """What chooses configurations, and what ends trials, told of an earlier run if there is one."""
    played = pd.read_parquet(p.earlier / "rounds.parquet") if p.earlier else pd.DataFrame({"trial": []})
    searcher = tuning.searcher(  # another seed, or an extended search would draw what it drew before
        p.searcher, p.space, p.points, p.outside, p.experiment.seed + played["trial"].nunique(), p.name, p.objectives,
        p.folder / results.SUGGESTIONS, pbt,
    )  # fmt: skip
    scheduler = shares.with_more_memory(tuning.scheduler(p.scheduler, p.budget, p.grace, p.space), p.gpus)
    if p.earlier and isinstance(searcher, tuning.Optuna):
        on = [t.trial for t in p.onward]
        searcher.learn(p.earlier / "study.journal", complete=not on, but=on)
        if not on:
            used = played["round" if p.budget.unit == "rounds" else "spent"]
            tuning.remember(scheduler, zip(played["trial"], used, played[tuning.METRIC], strict=True))
    return searcher, scheduler


def _summary(
    p: Plan, config: Config, best: pd.Series, checked: pd.DataFrame, counts: dict[str, int], data_dir: str | None
) -> None:
    """Say what was found."""
    ended = ", ".join(f"{n} {how}" for how, n in counts.items())
    say(f"\nbest of {sum(counts.values())} trials ({ended}): trial {best['trial']}, " + _listed(config, short))
    say(
        f"in the search: val_acc {best['last_val_acc']:.4f}, test_acc {best['last_test_acc']:.4f} "
        f"after {best['rounds']} rounds"
    )
    if len(checked):
        table = Table(title=f"test accuracy on {p.final_seeds} fresh seeds, last round", title_justify="left")
        for column in ("configuration", "mean ± std", "each seed", "MB a run"):
            table.add_column(column, justify="left" if column == "configuration" else "right")
        for name, runs in checked.groupby("configuration"):
            accuracy = runs["test_acc"]
            mean = f"{accuracy.mean():.4f} ± {accuracy.std(ddof=1):.4f}" if len(runs) > 1 else f"{accuracy.mean():.4f}"
            each = "  ".join("diverged" if math.isnan(a) else f"{a:.4f}" for a in accuracy)
            table.add_row(str(name), mean, each, f"{runs['comm_mb'].mean():.2f}")
        Console().print(table)
        if "default" not in set(checked["configuration"]):
            say("the best configuration is the default one")
    if p.scheduler == "pbt":
        say("note: PBT moved the hyperparameters during training; best.yaml and the check above hold the last values")
    say(f"folder: {p.shown}")
    say(f"again: fedtune run --config {p.shown / 'best.yaml'}" + (f" --data-dir {data_dir}" if data_dir else ""))


def _length(p: Plan) -> str:
    """What a trial may use, in words."""
    rounds = f"{p.experiment.scenario.rounds} rounds"
    unit = {"mb": "MB", "seconds": "s"}.get(p.budget.unit)
    most = f"{rounds} or {p.budget.limit:g} {unit}" if unit else rounds
    return most + (f", each on {p.seeds} seeds" if p.seeds > 1 else "")


def _front(p: Plan, rounds: pd.DataFrame, trials: pd.DataFrame) -> None:
    """Write down and say which rounds of which trials none beats."""
    found = pareto.front(pareto.with_totals(rounds), p.objectives)
    columns = ["trial", "round", *p.objectives, "test_acc"]
    configs = trials[["trial", *(c for c in trials if c.startswith(results.CONFIG))]]
    found = found[columns].merge(configs, on="trial", how="left")
    found.to_parquet(p.folder / "front.parquet", index=False)
    title = f"front of {' and '.join(p.objectives)} over every round of every trial: {len(found)} points"
    table = Table(title=title, title_justify="left")
    for column in (*columns, *p.space.names):
        table.add_column(column, justify="left" if column == "trial" else "right")
    every = max(1, math.ceil(len(found) / 12))
    for row in found[::-1][::every].to_dict("records"):  # the best first, at most twelve evenly taken
        shown = [f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        config = _plain({n: row.get(results.CONFIG + n) for n in p.space.names})
        table.add_row(*shown, *(short(config.get(n)) for n in p.space.names))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _plain(config: dict[str, Any]) -> Config:
    """Values as Python's own types, without the columns that this trial did not have."""
    plain = {k: v.item() if hasattr(v, "item") else v for k, v in config.items()}
    return {k: v for k, v in plain.items() if not (isinstance(v, float) and math.isnan(v))}


def _listed(values: dict[str, Any], text: Callable[[Any], str] = str) -> str:
    return ", ".join(f"{k} = {text(v)}" for k, v in values.items())


if __name__ == "__main__":
    sys.exit(main())
