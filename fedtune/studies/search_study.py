"""A search, the choice of its best trial, and its final check: from a plan to records and messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedtune.cluster import gpu_share, ray_start
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import near, say, several, short
from fedtune.experiment.experiment import Experiment
from fedtune.runs import disk, provenance, reading, tables, trial_states, user_copies
from fedtune.runs.files import RunFiles, goes_on
from fedtune.runs.trial_states import BROKEN, TRACEBACK
from fedtune.studies import choosing, final_check, fresh_seeds, ledger
from fedtune.tuning import driver, messages, saved_state, schedulers, verdict
from fedtune.tuning.callbacks import trackers
from fedtune.tuning.options.types import AUTO
from fedtune.tuning.plan import SearchPlan, StartedSearch
from fedtune.user_code import user_errors


def run_with_ray(p: SearchPlan, record: dict[str, Any] | None = None, resumed: bool = False) -> int:
    """Start Ray, search, check and report the result; the exit status.

    record: entries of the run's record besides the plan, for instance which run it continues.
    """
    with ExitStack() as stack:
        if resumed:
            stack.enter_context(p.files.lock())
            say(f"resuming {near(p.folder)} from its checkpoints")
        trains, options = p.workload.trainer, p.options
        data = trains.load(p.workload, options.data_dir, options.download)
        trains.require(p.workload, data, [*p.choosing, *p.fresh(options.final_seeds)])
        trains.report(p.workload, data)
        prepared = prepare(p, data)
        disk.require_room(p.folder.parent)
        fits = stack.enter_context(connected(p, p.files, p.folder.parent))
        return run_search(p, record or {}, data, prepared, fits, resumed)


def connected(p: SearchPlan, files: RunFiles, storage: Path) -> AbstractContextManager[int]:
    """Ray, with room for so many of a search's trials.  files: of the study.  storage: what its nodes must share."""
    return ray_start.connected(
        p.options.address,
        cpus=p.options.cpus_per_trial,
        gpus=p.gpus,
        dashboard=p.options.dashboard,
        trials=min(p.trials, p.options.max_concurrent or p.trials),
        log=files.ray_log_file,
        storage=storage,
    )


def prepare(p: SearchPlan, data: Mapping[str, Any]) -> list[Any]:
    """The data that every trial trains on, by seed."""
    return [p.workload.trainer.prepare(p.workload, data, seed) for seed in p.selecting]


def run_search(
    p: SearchPlan, record: dict[str, Any], data: Mapping[str, Any], prepared: list[Any], fits: int, resumed: bool
) -> int:
    """Run a search with Ray already running and room for `fits` trials; who resumes one holds the folder's lock."""
    with ExitStack() as stack:
        s, run = _started(p, data, prepared, fits), p.files
        messages.announce(s)
        tools = stack.enter_context(trackers.opened(p)) if p.options.logger else []
        run.add(**provenance.of_workload(s.workload) | p.to_record() | {"concurrent": s.concurrent} | record)
        if not resumed:  # not before: a refused search leaves nothing behind
            run.make()
            stack.enter_context(run.lock())
            if p.own:
                user_copies.keep(p.own, p.folder)
        run.write("running")
        stack.enter_context(disk.reserved(p.folder))
        watch = disk.DiskWatch(p.folder)
        if not p.options.debug:
            stack.enter_context(ray_start.without_stacks())
        with watch.explaining(near(p.folder)):
            return search_and_check(s, run, watch, resumed, tools)


def _started(p: SearchPlan, data: Mapping[str, Any], prepared: list[Any], fits: int) -> StartedSearch:
    workload, gpus = p.workload_as_begun(), p.gpus
    workload = workload.trainer.settled(workload, p.default(), prepared[0])
    if p.options.gpus_per_trial == AUTO:
        gpus, fits = gpu_share.measure_gpu_share(workload, prepared, p.options.cpus_per_trial)
    concurrent = p.options.max_concurrent or fits
    return StartedSearch(plan=p, workload=workload, data=data, prepared=prepared, gpus=gpus, concurrent=concurrent)


class Found(NamedTuple):
    """What a search found."""

    trials: pd.DataFrame
    best: pd.Series | None  # by the trials' own seeds
    broken: dict[str, list[str]]  # why trials failed with errors that stay, and their stacks
    interrupted: bool  # by the user, before its trials had ended
    began: float

    @property
    def counts(self) -> dict[str, int]:
        """How many trials ended in which way."""
        return dict(self.trials["status"].value_counts().to_dict())


def search_and_check(
    s: StartedSearch, run: RunFiles, watch: disk.DiskWatch, resumed: bool, tools: Sequence[trackers.TrialLogger] = ()
) -> int:
    """Search, choose the best trial, check it on fresh seeds, and conclude; the exit status."""
    p, ahead = s.plan, final_check.WorkersAhead(s)
    with _ending_recorded(run, watch):
        found = _search(s, run, watch, resumed, tools, ahead)
    if watch.fault:
        run.write("interrupted", reason=f"its folder {watch.fault}")
        raise watch.error(near(p.folder))
    if found.best is None:
        return _nothing_found(p, run, found)
    with _ending_recorded(run, watch):
        best = _choose(s, run, found, ahead)
    if best is None:
        return 1
    how: dict[str, Any] = {"trials": len(found.trials), "seeds": p.seeds}
    if tables.CHOICE in best:
        how |= {"choose_seeds": p.options.choose_seeds, tables.CHOICE: float(best[tables.CHOICE])}
    config = tables.write_best(p.folder, s.workload, p.options.scenario, best, p.budget, p.goal, **how)
    if found.interrupted:
        run.write("interrupted")
        say(f"best so far: trial {best['trial']} with {messages.listed(config, short)}")
        say(f"folder: {near(p.folder)}")
        return 130
    with _ending_recorded(run, watch):
        ahead.wait()
        checked = final_check.check(s, config)
    run.add(final=checked.to_dict("records"), seconds=round(time.monotonic() - found.began, 1))
    run.write("finished")
    of_privacy = ledger.write(p, config, best, found.trials, len(checked))
    messages.conclude(p, config, best, checked, found.counts, of_privacy)
    return 0


def _search(
    s: StartedSearch,
    run: RunFiles,
    watch: disk.DiskWatch,
    resumed: bool,
    tools: Sequence[trackers.TrialLogger],
    ahead: final_check.WorkersAhead,
) -> Found:
    p, began = s.plan, time.monotonic()
    grid, reported = driver.fit(s, resumed, watch, tools, also=[ahead])
    rounds, trials = tables.frames(grid, reported, p.extended, [t.trial for t in p.continued], p.goal)
    p.folder.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
    cut = not watch.fault and saved_state.cut_short(grid, p.trials, p.folder)
    interrupted = cut and not p.options.time_budget
    if interrupted or watch.fault:
        trials = tables.with_open(trials, trial_states.trial_statuses(p.folder, dict(reported), "interrupted"))
    reading.write_table(rounds, run.rounds_file)
    reading.write_table(trials, run.trials_file)
    if len(p.goal.objectives) > 1 and len(rounds) and not watch.fault:
        messages.front(p, rounds, trials)
    if cut:
        what = f"interrupted; {_goes_on(run)}" if interrupted else "time budget reached"
        say(f"{what}: {len(trials)} of {several(p.trials, 'trial')} were started")
    best = tables.best_trial(trials, p.budget.unit, p.goal)
    if schedulers.moves_hyperparameters(p.scheduler):
        trials = trials.assign(**{ledger.TRAINED: [ledger.rounds_in(reported.get(t, [])) for t in trials["trial"]]})
    found = Found(trials, best, _broken(reported), interrupted, began)
    run.add(search_seconds=round(time.monotonic() - began, 1), status=found.counts, unheard=_unheard(p, rounds, best))
    return found


def _unheard(p: SearchPlan, rounds: pd.DataFrame, best: pd.Series | None) -> bool:
    if best is None or not isinstance(p.workload, Experiment):
        return False
    _, scenario = p.workload.released(fresh_seeds.values(p, best.to_dict()))
    of_best = rounds[rounds["trial"] == best["trial"]].to_dict("records")
    return trial_states.unheard(of_best, scenario.least_asked)


def _choose(s: StartedSearch, run: RunFiles, found: Found, ahead: final_check.WorkersAhead) -> pd.Series | None:
    """The trial to name: the best, by more seeds where the options say so; None, said and recorded, if none stands."""
    for reason, stacks in found.broken.items():
        what = f"{len(stacks)} of {several(len(found.trials), 'trial')} failed"
        say(f"note: {what}: {reason}\n{stacks[0]}".rstrip("\n"))
    if found.interrupted or not s.plan.choosing or found.best is None or found.best["status"] != "finished":
        return found.best
    ahead.wait()
    best, rows = choosing.choose(s, found.trials)
    run.add(choice=rows.to_dict("records"))
    if best is None:
        _say_nothing(run, messages.none_stands(rows))
    return best


@contextmanager
def _ending_recorded(run: RunFiles, watch: disk.DiskWatch) -> Iterator[None]:
    """If the search is ended early meanwhile, its record and a message say so."""

    def interrupted(why: str) -> None:
        run.write("interrupted", reason=why)
        say(f"interrupted; {_goes_on(run)}")

    try:
        with interrupting.last_words(interrupted):
            yield
    except KeyboardInterrupt as error:
        run.write("interrupted", reason=type(error).__name__)
        raise KeyboardInterrupt(_goes_on(run)) from None
    except BaseException as error:
        watch.look()  # first, as writing the record creates a folder that has vanished
        run.write("failed", reason=f"{user_errors.kind(error)}: {user_errors.text(error)}")
        raise


def _goes_on(run: RunFiles) -> str:
    return goes_on(near(run.path), run.entries)


def _broken(reported: driver.TrialRows) -> dict[str, list[str]]:
    """Why trials failed with errors that a retry cannot fix, and their stacks, or what a program printed last."""
    stacks: dict[str, list[str]] = {}
    for *_, last in (rows for rows in reported.values() if rows):
        if last.get(BROKEN):
            stacks.setdefault(" ".join(str(last["reason"]).split()), []).append(last.get(TRACEBACK) or "")
    return stacks


def _nothing_found(p: SearchPlan, run: RunFiles, found: Found) -> int:
    """Say and record why no trial counts; the exit status.  UserError if all failed with errors that stay."""
    if found.interrupted:
        run.write("interrupted")
        return 130
    if found.broken and sum(map(len, found.broken.values())) == len(found.trials):
        (reason, stacks), *unlike = found.broken.items()
        failed = f"every trial failed: {reason}" + (f" (and {len(unlike)} other reasons)" if unlike else "")
        run.write("nothing found", reason=failed)
        if stacks[0]:
            say(f"a trial's last lines:\n{stacks[0]}".rstrip("\n"))
        raise UserError(failed)
    return _say_nothing(run, verdict.nothing(p.goal, p.budget.unit, found.trials))


def _say_nothing(run: RunFiles, why: str) -> int:
    run.write("nothing found", reason=why)
    say(why)
    return 1
