"""Why a search found nothing, and what to know before you trust it: a terminal and a report say the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedtune.core.objectives import Goal
from fedtune.core.statistics import figure
from fedtune.core.terminal import several, short
from fedtune.runs import tables
from fedtune.runs.trial_states import UNHEARD
from fedtune.tuning import ranges, searchers

ENOUGH = 32  # a search's default number of trials


def nothing(goal: Goal, unit: str, trials: pd.DataFrame) -> str:
    """Why there is no best trial: none satisfies the constraints, or all diverged or failed.  unit: of budget."""
    candidates = tables.ranked(tables.to_choose_from(trials, unit), goal)
    if candidates.empty or not goal.constraints:
        reasons = [r for r in trials["reason"] if r] if len(trials) else []
        why = f" (the first: {reasons[0].splitlines()[-1]})" if reasons else ""
        return f"no trial ended with a finite result{why}"
    excess = sum(candidates[c.column].map(c.excess).clip(lower=0) for c in goal.constraints)
    best = candidates.loc[excess.sort_values(kind="stable").index[0]]
    columns = {c.name: c.column for c in goal.constraints} | {o.name: o.column for o in goal.objectives}
    figures = " and ".join(f"{name} {figure(name, float(best[column]))}" for name, column in columns.items())
    bounds, count = " and ".join(map(str, goal.constraints)), several(len(candidates), "longest trial")
    nearest = f"The nearest is trial {best['trial']} with {figures}"
    return f"none of the {count} satisfies {bounds}. {nearest}. Loosen the bound, or widen the space"


def caveats(
    searcher: str, trials: int, config: Mapping[str, Any], space: Mapping[str, str], resume: str | None = None
) -> list[str]:
    """The caveats of one search.  config: its best.  space: as a record has it.  resume: as `as_random` takes it."""
    return as_random(searcher, trials, "this as a random search", resume) + at_edges("the best", [config], space)


def on_test_rows(record: Mapping[str, Any]) -> list[str]:
    """What to know of a search that selected by figures of test rows, as --selects-on-test allows it."""
    metrics = record.get("metrics") or {}
    if not (names := [n for n in Goal.from_record(record).names if dict(metrics.get(n, {})).get("split") == "test"]):
        return []
    return [
        f"SELECTED ON TEST ROWS: {' and '.join(names)} of {record['algorithm']} is measured on test rows and has "
        "selected its configuration (--selects-on-test), so all its figures are too good and say nothing about new data"
    ]


def unseeded(record: Mapping[str, Any]) -> list[str]:
    """What to know of a search of a program that cannot be seeded."""
    what = "has no seed, so its trials cannot be repeated, and its runs on fresh seeds are repetitions"
    return [] if record.get("repeatable", True) else [f"{record['algorithm']} {what}"]


def unheard(record: Mapping[str, Any]) -> list[str]:
    """What to know of a search none of whose uploads counted."""
    return [f"of {record['algorithm']}'s best trial {UNHEARD}"] if record.get("unheard") else []


def as_random(searcher: str, trials: int, which: str, resume: str | None = None) -> list[str]:
    """A warning if the search ends before, or soon after, its searcher begins to learn.

    which: how to read it.  resume: the command that gives it more trials; None if there is none, "" if it is not over.
    """
    if not (missing := lacking(searcher, trials)):
        return []
    begun = f"with {several(trials, 'trial')} {searcher} has hardly begun to learn"
    more = f"it {missing} more: {resume} --trials +{missing}" if resume else f"--trials {trials + missing}"
    first = f"its first {searchers.KINDS[searcher].startup} are random"
    return [f"{begun} ({first}): read {which}" + f", or give {more}" * (resume != "")]


def lacking(searcher: str, trials: int) -> int:
    """How many more trials a searcher needs to learn; 0 if these are enough, or it does not learn."""
    startup = searchers.KINDS[searcher].startup if searcher in searchers.KINDS else 0
    return max(ENOUGH - trials, 2 * startup - trials, 0) if startup else 0


def at_edges(whose: str, configs: Sequence[Mapping[str, Any]], space: Mapping[str, str]) -> list[str]:
    """Which values lie at an end of the searched range in most of these configurations, one of each search."""
    lines = []
    for (name, text), end in itertools.product(space.items(), ("lower", "upper")):
        at = {str(k): of[name] for k, of in enumerate(configs, 1) if ranges.edge(of.get(name), text) == end}
        values = ", ".join(dict.fromkeys(map(short, at.values())))
        values += f" in {len(at)} of {len(configs)} searches ({', '.join(at)})" * (len(configs) > 1)
        where = f"at the {end} end of the searched {text}: the optimum may lie beyond it"
        lines += [f"{whose} has {name} = {values}, {where}"] * (2 * len(at) > len(configs))
    return lines
