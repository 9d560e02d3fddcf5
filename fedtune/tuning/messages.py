"""The messages of a search: what it will do, and what it found."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from fedtune.core.budget import SHORT
from fedtune.core.metrics import METRIC, label
from fedtune.core.objectives import BY_ACCURACY
from fedtune.core.statistics import figure
from fedtune.core.terminal import command_line, near, say, say_table, several, short
from fedtune.runs import choice, pareto, reading, tables, trial_states
from fedtune.runs.files import RunFiles
from fedtune.tuning import schedulers, searchers, space_facts, verdict
from fedtune.tuning.checked import FinalCheck
from fedtune.tuning.plan import SearchPlan, StartedSearch
from fedtune.tuning.space_types import Config


def announce(s: StartedSearch) -> None:
    """Say what will be searched, and how."""
    p = s.plan
    say(f"{p.title}, space {p.options.space}: " + listed(p.space.text()))
    for line in p.workload.describe():
        say(line)
    stops = schedulers.rungs(p.scheduler, p.budget.limit, p.grace)
    reached, unit = ", ".join(format(stop, "g") for stop in stops), SHORT.get(p.budget.unit)
    at = f"{reached} {unit}" if unit else f"round{'s' * (len(stops) > 1)} {reached}"
    stopping = f"{p.scheduler} lets only the better ones go on after {at}" if stops else f"scheduler {p.scheduler}"
    wanted = f" for {p.goal.in_words}" if p.goal != BY_ACCURACY else ""
    trials = f"{several(p.trials, 'trial')} of up to {_length(p)}, {s.concurrent} at once"
    how = f"{p.searcher} proposes values{wanted}, {stopping}"
    say(f"{trials}; " + (f"each repeats a trial of {near(p.after.folder)}" if p.after and p.replayed else how))
    if p.choosing:
        more = several(len(p.choosing), f"more {p.run_word}")
        runs = several(choice.usual_runs(p.options.choose_seeds), "run")
        say(f"then the best {choice.TOP} finished trials are trained on {more}: {runs} before one is named")
    if why := p.unjudged:
        say(f"note: {why}")
    if schedulers.find(p.scheduler).judges_all and len(p.goal.objectives) > 2:
        say(
            f"note: with {len(p.goal.objectives)} objectives most trials are on the front, and then only their "
            "distance from one another decides which go on; a cost that is known before training is better a constraint"
        )


def show_choice(p: SearchPlan, rows: pd.DataFrame, name: str | None) -> None:
    """Print how the best trials did on more seeds.  rows: as `studies.choosing` makes them; name: the named trial."""
    first, count = p.goal.first.name, several(p.seeds + len(p.choosing), p.run_word)
    each = [f"{p.run_word} {seed}" for seed in p.choosing]
    figures = rows[[choice.OWN, *each, first]].astype(float).map(partial(figure, first))
    shown = [[t + " (chosen)" * (t == name), *cells] for t, cells in zip(rows["trial"], figures.values, strict=True)]
    if not _in_comparison(p):  # its report has the table
        say_table(f"choice by {count}: {first} in the last round", ("trial", "in the search", *each, "mean"), shown)
    for row in rows[rows["reason"] != ""].to_dict("records"):
        say(f"note: trial {row['trial']} cannot be chosen: {row['reason']}")


def _in_comparison(p: SearchPlan) -> bool:
    return RunFiles(p.folder.parent).is_comparison


def none_stands(rows: pd.DataFrame) -> str:
    """Why no finished trial can be named."""
    first, count = rows.iloc[0], several(len(rows), "finished trial")
    why = f"none of {count} can be chosen on more seeds; the first, {first['trial']}: {first['reason']}"
    return f"{why}. Widen the space, or take --choose-seeds 1 to choose without them"


def conclude(
    p: SearchPlan,
    config: Config,
    best: pd.Series,
    checked: pd.DataFrame,
    counts: dict[str, int],
    of_privacy: Sequence[str] = (),
) -> None:
    """Print the best configuration, its figures, and what it cost in privacy."""
    trials, tested = several(sum(counts.values()), "trial"), tables.tested(best, p.goal.first)
    first, ended = p.goal.first.name, trial_states.counts_in_words(counts)
    which = f"trial {best['trial']}, the best of {trials} ({ended})"
    mean = "" if math.isnan(chosen_by := float(best.get(tables.CHOICE, math.nan))) else figure(first, chosen_by)
    over = several(p.seeds + len(p.choosing), p.run_word)
    if _in_comparison(p):  # it says the rest once, for all its searches
        scored = f"{label(first)} {figure(first, float(best[tables.final(first)]))}"
        return say(f"{which}: {scored}{f', over {over} {mean}' * bool(mean)}; {listed(config, short)}")
    found = FinalCheck(checked, p.goal.first, p.workload.traits.repeatable)
    if len(checked):
        say(f"\n{found.verdict()}.")
    else:
        say("\nThe best configuration has not been checked on fresh seeds, so its score below is optimistic.")
    say(f"Best configuration: {listed(config, short)}.")
    names = [*(n for n in p.goal.names if n not in (METRIC, *tested)), *[METRIC] * (tables.final(METRIC) in best)]
    figures = [f"{label(n)} {figure(n, float(best[tables.final(n)]))}" for n in names]
    figures += [f"{label(n)} {figure(n, value)}" for n, value in tested.items() if n != "test_round"]
    figures[-1] += f" (round {tested['test_round']})" if "test_round" in tested else ""
    means = f", means of {several(p.seeds, p.run_word)}" if p.seeds > 1 else ""
    say(f"It is {which}: {', '.join(figures)} after {several(best['rounds'], 'round')}{means}.")
    if mean:
        say(f"Over {over} its mean {label(first)} is {mean}.")
    if len(checked):
        _say_checked(p, found)
    if schedulers.find(p.scheduler).moves_hyperparameters:
        say("note: PBT changed the hyperparameters during training; best.yaml and the check above use the last values")
    whole, record = space_facts.are_all(p.space, p.trials), p.workload.to_record() | p.goal.to_record()
    extends = searchers.extendable(p.searcher, p.scheduler) and not (p.replayed or whole or p.options.trials_drawn)
    resume = command_line("resume", near(p.folder)) if extends else None
    learns, count = "" if whole else p.searcher, sum(counts.values())  # of a whole grid nothing was sampled
    for line in of_privacy:
        say(line)
    for caveat in verdict.caveats(learns, count, config, p.space.text(), resume) + verdict.unseeded(record):
        say(f"note: {caveat}")
    for caveat in verdict.on_test_rows(record) + verdict.unheard(p.files.record):
        say(f"WARNING: {caveat}")
    _say_next(p, config, f"{resume} --trials +{verdict.lacking(learns, count) or count}" if resume else "")


def _say_next(p: SearchPlan, config: Config, more: str) -> None:
    folder = near(p.folder)
    say(f"folder: {folder}")
    say("what to do next:")
    lie = ("--data-dir", p.options.data_dir) if p.options.data_dir else ()
    again = command_line("run", "--config", folder / p.files.best_file.name, *lie)
    best = p.workload.to_best(p.options.scenario, config, None)
    if command := best.get("command"):  # of a program
        files = "  # with the files in best.yaml" if best.get("files") else ""
        again = f"cd {shlex.quote(best['folder'])} && {command}{files}"
    todo = {"figures, and what to try": command_line("report", folder), "train the best again": again}
    todo |= {"search on": more} if more else {}
    for what, command in todo.items():
        say(f"  {what:26}{command}")


def _say_checked(p: SearchPlan, found: FinalCheck) -> None:
    checked = found.runs
    say_table(*found.table())
    for run in checked[checked["reason"].str.startswith(trial_states.FAILED)].to_dict("records"):
        say(f"note: {run['configuration']}, {p.run_word} {run['seed']} {run['reason']}")
    for constraint in p.goal.constraints:
        values_of_best = checked[checked["configuration"] == "best"][constraint.name]
        satisfied = int((values_of_best.map(constraint.excess) <= 0).sum())
        runs = several(len(values_of_best), "fresh seed" if p.workload.traits.repeatable else "repetition")
        reported = constraint.name in p.workload.measures.figures({}) or values_of_best.notna().any()
        say(f"{constraint} {f'holds on {satisfied}' if reported else 'is not reported on any'} of {runs}")


def _length(p: SearchPlan) -> str:
    limit = f" or {p.budget.text}" if p.budget.unit in SHORT else ""
    on = f", each on {several(p.seeds, p.run_word)}" if p.seeds > 1 else ""
    return several(p.workload.rounds, "round") + limit + on


def front(p: SearchPlan, rounds: pd.DataFrame, trials: pd.DataFrame) -> None:
    """Write down and say which rounds of which trials are on the Pareto front."""
    points = pareto.with_totals(rounds)
    for constraint in p.goal.constraints:
        points = points[points[constraint.name].map(constraint.excess) <= 0]
    names = [o.name for o in p.goal.objectives]
    on_front = pareto.front(points, p.goal.objectives)
    of_tests = dict.fromkeys([*(o.tested for o in p.goal.objectives), "test_acc"])
    columns = ["trial", "round", *names, *(n for n in of_tests if n in on_front)]
    configs = trials[["trial", *(c for c in trials if c.startswith(tables.CONFIG))]]
    on_front = on_front.reindex(columns=columns).merge(configs, on="trial", how="left")
    reading.write_table(on_front, p.files.front_file)
    title = f"Pareto front of {p.goal.all_in_words} over every round of every trial: {several(len(on_front), 'point')}"
    say_table(title, *pareto.front_table(on_front, p.space.names))


def listed(values: dict[str, Any], text: Callable[[Any], str] = str) -> str:
    """Names and values on one line, as `lam = 2, lr = 0.1`."""
    return ", ".join(f"{k} = {text(v)}" for k, v in values.items())
