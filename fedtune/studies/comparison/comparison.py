"""A comparison of algorithms: searches with equal budgets on one scenario, then runs on fresh seeds."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedtune.core import interrupting, processors, terminal
from fedtune.core.errors import UserError
from fedtune.core.terminal import near, say, several
from fedtune.experiment.experiment import Experiment
from fedtune.runs import disk, overview, provenance, reading, user_copies
from fedtune.runs.files import COMPARISON, OVER, WAITING, RunFiles, goes_on
from fedtune.studies import fresh_seeds, search_study
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison import report as comparison_report
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import ranges, saved_state
from fedtune.tuning.plan import SearchPlan
from fedtune.user_code import user_errors

HOURS = 3  # from which on a time is told in hours


def run(c: ComparisonPlan, record: Mapping[str, Any] | None = None) -> int:
    """Run the missing searches, test their results on fresh seeds, write and show the tables; the exit status.

    record: what is kept of the record of a comparison that is resumed.
    """
    p = c.first
    with ExitStack() as stack:
        files = RunFiles(c.folder, COMPARISON)
        made = files.record_file.exists()
        begun = made and files.record["state"] != WAITING
        if made:
            stack.enter_context(files.lock())
        if begun:
            say(f"resuming {near(c.folder)} from its checkpoints")
        data = _data(c)
        if not begun:
            _say_plan(data, c)
        disk.require_room(c.folder)
        fits = stack.enter_context(search_study.connected(p, files, c.folder))
        files.add(**provenance.of_scenario(c.to_record()) | dict(record or {}))
        if not made:
            files.make()
            stack.enter_context(files.lock())
            user_copies.keep(c.own, c.folder)
        with recorded(files) as finish:
            over = _search_all(c, data, fits)
            if over and c.options.widen:
                c = _widened(c, files)
                over = not c.before or _search_all(c, data, fits)
            if not over:
                finish("interrupted")
                say(f"interrupted; {goes_on(c.folder, {})}")
                return 130
            finish("finished", **_test_findings(c, data, files.entries))
            return 0


def set_down(c: ComparisonPlan) -> None:
    """Make the folder of a comparison that waits for its turn: `resume` begins it as it is planned now."""
    files = RunFiles(c.folder, COMPARISON)
    files.make()
    user_copies.keep(c.own, c.folder)
    files.add(**provenance.of_scenario(c.to_record()))
    files.write(WAITING)


def dry_run(*comparisons: ComparisonPlan) -> int:
    """Say what comparisons would do, and about how long all would take; the exit status.  Nothing is started."""
    _say_plan(_data(comparisons[0]), *comparisons)
    return 0


def _say_plan(data: Mapping[str, Any], c: ComparisonPlan, *more: ComparisonPlan) -> None:
    for of in (c, *more):
        for line in of.in_words:
            say(f"{of.folder.name}: {line}" if more else line)
    p, w, rounds = c.first, c.first.workload, sum(sum(of.runs) * of.first.workload.rounds for of in (c, *more))
    if p.budget.unit == "seconds":
        seconds, by = p.budget.limit * sum(c.runs), "at most, by their budget"
    elif isinstance(w, Experiment) and not (p.gpus or p.options.address):
        prepared = search_study.prepare(p, data)[0]
        w = w.trainer.settled(w, p.default(), prepared)
        w.trainer.warm(w, p.default(), prepared)  # a first round takes longer
        began = time.monotonic()
        w.trainer.warm(w, p.default(), prepared)
        each = time.monotonic() - began
        seconds, by = each * rounds, f"if all are as one of {w.name}'s default configuration ({each:.2g} s)"
    else:
        return
    at_once = c.options.max_concurrent or max(1, int(processors.usable() / c.options.cpus_per_trial))
    minutes = math.ceil(seconds / at_once / 60)
    took = several(minutes, "minute") if minutes < HOURS * 60 else f"{minutes / 60:.0f} hours"
    say(f"about {took} {by}, {at_once} at once; early stopping takes less, more local epochs more")


def _data(c: ComparisonPlan) -> dict[str, Any]:
    data: dict[str, Any] = {}
    prepared = set[Any]()
    for p in c.every:
        trains = p.workload.trainer
        source = trains.source(p.workload)
        if source not in prepared:
            data |= trains.load(p.workload, p.options.data_dir, p.options.download)
            trains.report(p.workload, data)
        if (source, p.workload.seed) not in prepared:
            trains.require(p.workload, data, [*p.selecting, *p.choosing, *p.fresh(c.options.seeds)])
        prepared |= {source, (source, p.workload.seed)}
    return data


@contextmanager
def recorded(files: RunFiles) -> Iterator[Callable[..., None]]:
    """Record that a comparison runs, and in the end how it ended, by itself or by what is yielded."""
    files.write("running")
    began, earlier = time.monotonic(), files.entries.get("seconds", 0.0)
    how = goes_on(files.path, {})

    def finish(state: str, **more: Any) -> None:
        files.add(seconds=round(earlier + time.monotonic() - began, 1))
        files.write(state, **more)

    def interrupt(why: str) -> None:
        finish("interrupted", reason=why)
        say(f"note: {how}")

    try:
        with interrupting.last_words(interrupt):
            yield finish
    except KeyboardInterrupt as error:
        finish("interrupted", reason=type(error).__name__)
        raise KeyboardInterrupt(how) from None
    except BaseException as error:
        interrupt(f"{user_errors.kind(error)}: {user_errors.text(error)}")
        raise


def _search_all(c: ComparisonPlan, data: Mapping[str, Any], fits: int) -> bool:
    count = itertools.count(1)
    for plans in c.searches:  # on the same seeds; those with the same source share what they train on
        prepared: dict[Any, list[Any]] = {}
        for p in plans.values():
            which = overview.search_in_words(p.folder, {"control": c.control, "searches": len(c.searches)})
            say(f"\n{next(count)} of {several(len(c.every), 'search')}: {which}")
            source = p.workload.trainer.source(p.workload)
            if source not in prepared:
                prepared[source] = search_study.prepare(p, data)
            if _search(p, data, prepared[source], fits) == 130:
                return False
    return True


def _widened(c: ComparisonPlan, files: RunFiles) -> ComparisonPlan:
    """The comparison with its second searches, if the best of some search lies at an end of a range that can go on."""
    best = {
        n: [of.config for plans in c.searches for of in fresh_seeds.candidates(plans[n], 1)[1:]] for n in c.compared
    }
    compared = c.compared.items()
    wider = ranges.rule({n: p.space for n, p in compared}, {n: p.workload for n, p in compared}, best)
    for reason in wider.reasons:
        say(f"widened: {reason}")
    if not any(wider.ranges.values()):
        say("note: no range is widened: no search's best value is at an end that can be extended")
        return c
    widened = comparison_plan.widened(c, wider)
    files.add(trials=widened.trials, widened=list(widened.widened))
    return widened


def _search(p: SearchPlan, data: Mapping[str, Any], prepared: list[Any], fits: int) -> int:
    record: dict[str, Any] = {"extends": p.extended.name} if p.extended else {}
    if not p.files.record_file.exists():
        return search_study.run_search(p, record, data, prepared, fits, resumed=False)
    before = p.files.record
    if before["state"] in OVER:
        say(f"{p.workload.name}: already searched")
        return 0
    with p.files.lock():
        saved_state.commit_states(p.folder)
        saved_state.require_state(p.folder)
        record |= provenance.record_for_resume(before)
        return search_study.run_search(p, record, data, prepared, fits, resumed=True)


def _test_findings(c: ComparisonPlan, data: Mapping[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    files = RunFiles(c.folder, COMPARISON)
    borrowed, record["unborrowed"] = _borrowed(c)
    evaluations, rounds, clients, outcomes = fresh_seeds.evaluate(
        c.searches, data, c.options.seeds, c.options.candidates, files.evaluations_folder, borrowed
    )
    reading.write_table(evaluations, files.evaluations_file)
    reading.write_table(rounds, files.evaluation_rounds_file)
    reading.write_table(clients, files.clients_file)
    return comparison_report.report(c, evaluations, outcomes, record)


def _borrowed(c: ComparisonPlan) -> tuple[dict[tuple[int, str], fresh_seeds.Candidate], list[str]]:
    """What is trained with the lender's values, by number of search and algorithm; and why something is not."""
    found, lacking = {}, []
    for k, plans in enumerate(c.searches, 1):
        best = fresh_seeds.candidates(plans[c.lender], 1)[1:] if c.borrowers else []
        whose = f"the values of {c.lender}'s search {k}"
        lacking += [f"nobody is trained with {whose}: it found nothing"] * (bool(c.borrowers) and not best)
        for name in c.borrowers if best else ():
            try:
                found[k, name] = fresh_seeds.borrowed(plans[name], best[0].config)
            except UserError as error:
                lacking.append(f"{name} is not trained with {whose}: {error}")
    return found, lacking


def resume(run_folder: Path, changes: Mapping[str, Any]) -> int:
    """Continue a comparison whose driver died or was interrupted; the exit status.

    changes: options with new values, for instance max_concurrent.
    """
    files = RunFiles(run_folder, COMPARISON)
    record = files.record
    user_copies.restore(run_folder, record, trust=True)  # the user who asked for it trusts it
    try:
        options = dataclasses.replace(ComparisonOptions.from_record(record), **changes)
    except (ValueError, KeyError, TypeError) as error:
        raise files.damaged(error) from error
    waited = record["state"] == WAITING
    with terminal.silent() if waited else nullcontext():  # what there is to say was said when it was set down
        planned = comparison_plan.make(options, run_folder.absolute())
    left = [p.folder.name for p in planned.every if not p.files.record_file.exists()]
    if left and "borrow" not in record["options"]:
        raise UserError(
            f"{near(run_folder)} was begun by an earlier version, which had other ranges and defaults, and "
            f"{', '.join(left)} not: finish it with that version, or compare anew"
        )
    kept = provenance.record_for_resume(record, "seconds", "left_out")
    return run(planned, {n: value for n, value in kept.items() if not (waited and n == "resumed")})
