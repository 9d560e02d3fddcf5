"""python -m fedtune.search: algorithm + space + scenario + scheduler + searcher -> ray.tune.Tuner -> what was found."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from contextlib import ExitStack
from typing import Any

from fedtune import arguments
from fedtune.cluster import gpu_share, ray_start
from fedtune.core import metrics
from fedtune.core.budget import UNITS
from fedtune.core.terminal import say, short
from fedtune.data import datasets, federation
from fedtune.runs import disk, tables
from fedtune.studies import final_check
from fedtune.tuning import driver, messages, plan, schedulers
from fedtune.tuning.plan import Plan
from fedtune.tuning.space import keep


def parser(prog: str = "fedtune search") -> argparse.ArgumentParser:
    """The arguments of a search.  prog: who complains of them."""
    p = arguments.Parser(prog=prog, description="Search an algorithm's hyperparameters with Ray Tune.")
    arguments.add_experiment(p)
    s = p.add_argument_group("search")
    s.add_argument("--space", default="default", metavar="NAME|FILE.py[:NAME]", help="default, paper, wide, or a file")
    s.add_argument("--also", metavar="NAME[=LOW..HIGH],…", help="search these too, over their ranges or those given")
    s.add_argument(
        "--trials", type=arguments.positive, metavar="N", help="configurations (default 32; a grid: all of it)"
    )
    s.add_argument("--scheduler", default="asha", help=f"one of {', '.join(schedulers.SCHEDULERS)} (default asha)")
    s.add_argument("--searcher", help=f"one of {', '.join(schedulers.SEARCHERS)} (default tpe; grid for a grid)")
    s.add_argument(
        "--objective", default=metrics.METRIC, metavar="A[,B]",
        help=f"{metrics.METRIC}, or it and one of {', '.join([*metrics.OBJECTIVES][1:])}: then a front is found",
    )  # fmt: skip
    s.add_argument(
        "--seeds-per-trial", type=arguments.positive, default=1, metavar="K", help="default 1; more: their means"
    )
    s.add_argument("--budget-unit", default="rounds", choices=UNITS, help="what a trial uses up, and rungs lie in")
    s.add_argument("--budget", type=arguments.above_zero, metavar="N", help="megabytes or seconds of a trial")
    s.add_argument(
        "--grace", type=arguments.above_zero, metavar="N", help="first rung (default: derived from the space)"
    )
    s.add_argument("--final-seeds", type=int, default=3, metavar="N", help="fresh seeds of the final check (default 3)")
    s.add_argument("--time-budget", type=float, metavar="SECONDS", help="stop the search after this long")
    m = p.add_argument_group("machine")
    m.add_argument("--max-concurrent", type=arguments.positive, metavar="N", help="trials at once (default: what fits)")
    m.add_argument("--cpus-per-trial", type=float, default=1, metavar="N", help="default 1")
    m.add_argument(
        "--gpus-per-trial", type=gpu_share.gpus, default=0, metavar="N", help="a fraction, or auto; default 0"
    )
    m.add_argument("--name", help="of the run's folder (default: algorithm, scenario and time)")
    m.add_argument("--storage-path", default="runs", metavar="DIR", help="where the run's folder goes (default runs)")
    m.add_argument("--address", help="of a Ray cluster: auto, host:port or ray://host:port (default: start one here)")
    m.add_argument("--no-dashboard", action="store_true", help="do not start Ray's dashboard")
    m.add_argument(
        "--dashboard-host", default=ray_start.LOOPBACK, metavar="HOST",
        help=f"where the dashboard listens (default {ray_start.LOOPBACK})",
    )  # fmt: skip
    m.add_argument("--tensorboard", action="store_true", help="TensorBoard event files too; they cost time per round")
    return p


@arguments.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = parser().parse_args(argv)
    return conduct(plan.make(args), args, {"arguments": sys.argv[1:] if argv is None else argv})


def conduct(p: Plan, args: argparse.Namespace, record: dict[str, Any], resumed: bool = False) -> int:
    """Search, check and say what was found; the exit status.  record: what run.json holds already."""
    with ExitStack() as held:
        if resumed:
            held.enter_context(tables.sole_driver(p.folder))
        data = datasets.load(p.experiment.scenario.dataset, args.data_dir, args.download)
        dealt = deal(p, data, p.final_seeds)
        disk.require_room(p.storage)
        ray_here = ray_start.connected(p.address, p.cpus, p.gpus, not args.no_dashboard, args.dashboard_host)
        fits = held.enter_context(ray_here)
        return at_work(p, args, record, data, dealt, fits, resumed)


def deal(p: Plan, data: datasets.Dataset, fresh: int) -> list[federation.Federation]:
    """The federations that every trial plays on; UserError if they, or so many fresh ones, cannot be dealt out."""
    federation.require_deals(data, p.experiment.scenario, p.fresh(fresh))
    seeds = range(p.experiment.seed, p.experiment.seed + p.seeds)
    return [federation.deal(data, p.experiment.scenario, seed) for seed in seeds]


def at_work(
    p: Plan, args: argparse.Namespace, record: dict[str, Any], data: datasets.Dataset,
    dealt: list[federation.Federation], fits: int, resumed: bool,
) -> int:  # fmt: skip
    """The same where Ray is there, with room for so many trials; whoever resumes holds the folder already."""
    with ExitStack() as held:
        if p.probe:
            gpus, fits = gpu_share.settle(p.experiment, dealt, p.cpus)
            p = dataclasses.replace(p, gpus=gpus)
        p = dataclasses.replace(p, concurrent=p.concurrent or fits)
        messages.announce(p, args.space, p.concurrent or fits)
        noted = tables.Record(p.folder, tables.provenance(tables.command_line(), p.experiment, p.told()) | record)
        if not resumed:  # not before: whatever is refused leaves nothing behind
            tables.make_folder(p.folder)
            keep(args.space, p.folder)
            held.enter_context(tables.sole_driver(p.folder))
        noted.write("running")
        held.enter_context(disk.reserved(p.folder))
        watch = disk.Watch(p.folder)
        if not args.debug:
            disk.quiet()
        with watch.explaining(p.shown):
            return _played(p, data, dealt, noted, watch, resumed, args.data_dir)


def _played(
    p: Plan, data: datasets.Dataset, dealt: list[federation.Federation], noted: tables.Record, watch: disk.Watch,
    resumed: bool, data_dir: str | None,
) -> int:  # fmt: skip
    """Search in the run's folder, then check; the exit status."""
    began = time.monotonic()
    try:
        grid, reported = driver.fit(p, dealt, p.concurrent or 1, resumed, watch)
    except BaseException as error:
        watch.look()  # before the record makes a vanished folder again
        noted.write("failed", reason=f"{type(error).__name__}: {error}")
        raise
    rounds, trials = tables.frames(grid, reported, p.earlier, [t.trial for t in p.onward])
    p.folder.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
    rounds.to_parquet(p.folder / "rounds.parquet", index=False)
    trials.to_parquet(p.folder / "trials.parquet", index=False)
    if watch.found:
        noted.write("interrupted", reason=f"its folder {watch.found}")
        raise watch.error(p.shown)
    if len(p.objectives) > 1 and len(rounds):
        messages.front(p, rounds, trials)
    cut = tables.cut_short(grid, p.trials, p.folder)
    if cut:
        what = "time budget reached" if p.time_budget else f"interrupted; fedtune resume {p.shown} goes on"
        say(f"{what}: {len(trials)} of {p.trials} trials were begun")
    counts = trials["status"].value_counts().to_dict()
    noted.add(search_seconds=round(time.monotonic() - began, 1), status=counts)
    best = tables.best_trial(trials, p.budget.unit)
    if best is None and cut and not p.time_budget:
        noted.write("interrupted")
        return 130
    if best is None:
        noted.write("nothing found")
        reasons = [r for r in trials["reason"] if r]
        say(f"no trial reported a finite result{': ' + reasons[0].splitlines()[-1] if reasons else ''}")
        return 1
    config = tables.write_best(p.folder, p.experiment, p.scenario, best, p.budget, trials=len(trials), seeds=p.seeds)
    if cut and not p.time_budget:
        noted.write("interrupted")
        say(f"best so far: trial {best['trial']}, {messages.listed(config, short)}; folder: {p.shown}")
        return 130
    checked = final_check.check(p, data, config)
    noted.add(final=checked.to_dict("records"), seconds=round(time.monotonic() - began, 1))
    noted.write("finished")
    messages.conclude(p, config, best, checked, counts, data_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
