"""A search, the choice of its best trial, and its final check: from a plan to records and messages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pandas as pd

from fedtune.cluster import gpu_share, ray_start
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line, say, several, short
from fedtune.runs import disk, provenance, reading, tables, user_copies
from fedtune.runs.files import RunFiles
from fedtune.runs.trial_states import BROKEN, STACK
from fedtune.studies import choosing, final_check
from fedtune.tuning import driver, messages, saved_state, unkeepable, verdict
from fedtune.tuning.callbacks import loggers
from fedtune.tuning.callbacks.recorder import TrialRows
from fedtune.tuning.plan import SearchPlan
from fedtune.user_code import user_errors


def run_with_ray(p: SearchPlan, record: dict[str, Any] | None = None, resumed: bool = False) -> int:
    """Start Ray, search, check and report the result; the exit status.

    record: entries of the run's record besides the plan, for instance which run it continues.
    """
    with ExitStack() as stack:
        if resumed:
            stack.enter_context(p.files.lock())
        data = p.workload.trainer.load(p.workload, p.options.data_dir, p.options.download)
        prepared = prepare(p, data, p.final_seeds)
        disk.require_room(p.storage)
        fits = stack.enter_context(
            ray_start.connected(
                p.address,
                cpus=p.cpus,
                gpus=p.gpus,
                dashboard=p.options.dashboard,
                trials=p.at_once,
                log=p.files.ray_log_file,
                storage=p.storage,
            )
        )
        return run_search(p, record or {}, data, prepared, fits, resumed)


def prepare(p: SearchPlan, data: Mapping[str, Any], fresh: int) -> list[Any]:
    """The data that every trial trains on, by seed; UserError if they, or the fresh ones, cannot be prepared."""
    trains = p.workload.trainer
    trains.require(p.workload, data, [*p.choosing, *p.fresh(fresh)])
    trains.report(p.workload, data)
    return prepared(p, data)


def prepared(p: SearchPlan, data: Mapping[str, Any]) -> list[Any]:
    """The data that every trial trains on, by seed."""
    return [p.workload.trainer.prepare(p.workload, data, seed) for seed in p.selecting]


def as_recorded(p: SearchPlan) -> SearchPlan:
    """The plan with what its run's record says was chosen, if it was started before."""
    record = p.files.record if p.files.record_file.exists() else {}
    return dataclasses.replace(p, workload=p.workload.as_recorded(record))


def run_search(
    p: SearchPlan,
    record: dict[str, Any],
    data: Mapping[str, Any],
    prepared: list[Any],
    fits: int,
    resumed: bool,
) -> int:
    """Run a search with Ray already running and room for `fits` trials; a resuming caller already holds the folder's
    lock.
    """
    with ExitStack() as stack:
        p = as_recorded(p)
        p = dataclasses.replace(p, workload=p.workload.trainer.settled(p.workload, p.default(), prepared[0]))
        if p.probe:
            gpus, fits = gpu_share.measure_gpu_share(p.workload, prepared, p.cpus)
            p = dataclasses.replace(p, gpus=gpus)
        p = dataclasses.replace(p, concurrent=p.concurrent or fits)
        messages.announce(p, p.options.space, p.concurrent or fits)
        run = p.files
        tools = stack.enter_context(loggers.opened(p.options.logger, about(p), p.workload.configuration))
        run.add(**provenance.of_workload(p.workload) | p.to_record() | record)
        if not resumed:  # not before: a refused search leaves nothing behind
            run.make()
            stack.enter_context(run.lock())
            user_copies.keep(p.own, p.folder)
        run.write("running")
        stack.enter_context(disk.reserved(p.folder))
        watch = disk.DiskWatch(p.folder)
        if not p.options.debug:
            stack.enter_context(ray_start.without_stacks())
        with watch.explaining(p.shown):
            return search_and_check(
                p=p, data=data, prepared=prepared, run=run, watch=watch, resumed=resumed, tools=tools
            )


def about(p: SearchPlan) -> loggers.About:
    """The description of the search for tools that log trials."""
    w = p.workload
    return loggers.About(f"{p.storage.name}/{p.name}", w.name, p.scenario, w.seed, p.folder)


def search_and_check(
    p: SearchPlan,
    data: Mapping[str, Any],
    prepared: list[Any],
    run: RunFiles,
    watch: disk.DiskWatch,
    resumed: bool,
    tools: Sequence[loggers.TrialLogger] = (),
) -> int:
    """Search in the study's folder, write its tables, then check what was found; the exit status."""
    began = time.monotonic()
    with _ending_recorded(p, run, watch):
        ahead = final_check.WorkersAhead(p)
        grid, reported = driver.fit(p, prepared, p.concurrent or 1, resumed, watch, tools, also=[ahead])
    rounds, trials = tables.frames(grid, reported, p.earlier, [t.trial for t in p.continued], p.goal)
    p.folder.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
    reading.write_table(rounds, run.rounds_file)
    reading.write_table(trials, run.trials_file)
    if watch.fault:
        run.write("interrupted", reason=f"its folder {watch.fault}")
        raise watch.error(p.shown)
    if len(p.goal.objectives) > 1 and len(rounds):
        messages.front(p, rounds, trials)
    hopeless = unkeepable.reason(p, reported)
    cut = not hopeless and saved_state.cut_short(grid, p.trials, p.folder)
    if cut:
        what = "time budget reached" if p.time_budget else _interrupted(p)
        say(f"{what}: {len(trials)} of {several(p.trials, 'trial')} were started")
    counts = trials["status"].value_counts().to_dict()
    run.add(search_seconds=round(time.monotonic() - began, 1), status=counts)
    best = None if hopeless else tables.best_trial(trials, p.budget.unit, p.goal)
    broken = _broken(reported)
    if best is None:
        return _nothing_found(p, run, trials, broken, cut and not p.time_budget, hopeless)
    every = several(len(trials), "trial")
    for reason, trouble in broken.items():
        say(f"note: {len(trouble)} of {every} failed: {reason}" + _at_length(trouble))
    how: dict[str, Any] = {"trials": len(trials), "seeds": p.seeds}
    over = not cut or p.time_budget
    if over and p.choosing and best["status"] == "finished":
        with _ending_recorded(p, run, watch):
            ahead.wait()
            best, rows = choosing.choose(p, data, trials)
        run.add(choice=rows.to_dict("records"))
        if best is None:
            return _nothing_stands(run, rows)
        how |= {"choose_seeds": p.options.choose_seeds, tables.CHOICE: float(best[tables.CHOICE])}
    config = tables.write_best(p.folder, p.workload, p.scenario, best, p.budget, p.goal, **how)
    if not over:
        run.write("interrupted")
        say(f"best so far: trial {best['trial']} with {messages.listed(config, short)}")
        say(f"folder: {p.shown}")
        return 130
    with _ending_recorded(p, run, watch):
        ahead.wait()
        checked = final_check.check(p, data, config)
    run.add(final=checked.to_dict("records"), seconds=round(time.monotonic() - began, 1))
    run.write("finished")
    messages.conclude(p, config, best, checked, counts, p.options.data_dir)
    return 0


@contextmanager
def _ending_recorded(p: SearchPlan, run: RunFiles, watch: disk.DiskWatch) -> Iterator[None]:
    """If the search is ended early meanwhile, its record and a message say so."""

    def interrupted(why: str) -> None:
        run.write("interrupted", reason=why)
        say(_interrupted(p))

    try:
        with interrupting.last_words(interrupted):
            yield
    except KeyboardInterrupt as error:
        interrupted(type(error).__name__)
        raise
    except BaseException as error:
        watch.look()  # first, as writing the record creates a folder that has vanished
        run.write("failed", reason=f"{user_errors.kind(error)}: {user_errors.text(error)}")
        raise


def _interrupted(p: SearchPlan) -> str:
    """The message for an interrupted search."""
    if p.replayed or p.earlier:
        return f"interrupted; the same command with another --name {'repeats' if p.replayed else 'extends'} it again"
    return f"interrupted; {command_line('resume', p.shown)} continues it"


def _broken(reported: TrialRows) -> dict[str, list[str]]:
    """Why trials failed with errors that a retry cannot fix, and their stacks."""
    stacks: dict[str, list[str]] = {}
    for rows in reported.values():
        if rows and rows[-1].get(BROKEN):
            stacks.setdefault(" ".join(str(rows[-1]["reason"]).split()), []).append(str(rows[-1].get(STACK) or ""))
    return stacks


def _at_length(stacks: list[str]) -> str:
    """The first trial's traceback, or what its program printed last."""
    return f"\n{stacks[0]}".rstrip("\n")


def _nothing_stands(run: RunFiles, rows: pd.DataFrame) -> int:
    """Say and record that no finished trial can be chosen; the exit status."""
    why = messages.none_stands(rows)
    run.best_file.unlink(missing_ok=True)  # it may be from before an interruption
    run.write("nothing found", reason=why)
    say(why)
    return 1


def _nothing_found(
    p: SearchPlan, run: RunFiles, trials: pd.DataFrame, broken: dict[str, list[str]], interrupted: bool, hopeless: str
) -> int:
    """Say and record why no trial counts; the exit status.  UserError if all failed with errors that stay.

    hopeless: why no configuration can satisfy the constraints, if that is so.
    """
    if interrupted:
        run.write("interrupted")
        return 130
    if broken and sum(map(len, broken.values())) == len(trials):
        (reason, stacks), *unlike = broken.items()
        others = f" (and {len(unlike)} other reasons)" if unlike else ""
        failed = f"every trial failed: {reason}{others}"
        run.write("nothing found", reason=failed)
        if more := _at_length(stacks):
            say(f"a trial's last lines:{more}")
        raise UserError(failed)
    why = hopeless or verdict.nothing(p.goal, p.budget.unit, trials)
    run.write("nothing found", reason=why)
    say(why)
    return 1
