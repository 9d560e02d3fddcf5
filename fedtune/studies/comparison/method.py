"""The paragraph of method that a paper can take: what a comparison ran, in sentences, with what they cite.

Every sentence is made from the plan, the tables and the record, so that none says more than was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedtune.core.metrics import METRICS
from fedtune.core.terminal import one_line, printable, several
from fedtune.programs.naming import is_program
from fedtune.runs.choice import TOP
from fedtune.runs.overview import RungCount
from fedtune.runs.reading import commits_of
from fedtune.studies.comparison import budgets
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.citations import cite
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.comparison.text import listed
from fedtune.tuning import schedulers, searchers, verdict
from fedtune.tuning.plan import SearchPlan

SEARCHERS = {
    "tpe": ("a tree-structured Parzen estimator", "bergstra2011tpe"),
    "random": ("random draws", "bergstra2012random"),
    "gp": ("a Gaussian process", ""),
    "cmaes": ("CMA-ES", "hansen2001cmaes"),
    "nsga2": ("NSGA-II", "deb2002nsga2"),
    "grid": ("a grid, point by point", ""),
}
SCHEDULERS = {
    "asha": ("asynchronous successive halving in its stopping form", "li2020asha"),
    "promote": ("asynchronous successive halving that lets trials wait and continues the best", "li2020asha"),
    "hyperband": ("asynchronous Hyperband in three brackets", "li2018hyperband,li2020asha"),
    "median": ("the median stopping rule", "golovin2017vizier"),
}


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What a comparison found, as far as its method depends on it.

    pairs, against  the tests of all pairs, and of those against the baselines
    control         the test of an algorithm that took part twice; empty if none did
    reported        the metric of runs on fresh seeds that is compared
    unequal         where budgets were not equal, in words
    record          the comparison's record: versions, commits
    records         the records of its searches
    rungs           for each rung how many trials of all searches reached it and went on
    """

    pairs: pd.DataFrame
    against: pd.DataFrame
    control: pd.DataFrame
    reported: str
    unequal: Sequence[str]
    record: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    rungs: Sequence[RungCount] = ()


def sentences(c: ComparisonPlan, tested: Tested) -> list[str]:
    """The method, sentence by sentence, with marked citations."""
    return [
        *_compared(c),
        *_searched(c, tested),
        *_selected(c, tested),
        *_fresh(c, tested),
        *_judged(c, tested),
        *_by_budget(c),
        *[f"Budgets were not equal: {one_line(line)}." for line in tested.unequal],
        _versions(tested.record),
    ]


def _compared(c: ComparisonPlan) -> list[str]:
    """What is compared, and where."""
    sentences = [f"We compare {listed(list(c.compared))} on {printable(c.scenario_words)}."]
    programs = [name for name, p in c.compared.items() if is_program(p.options.algo)]
    if programs:
        are = "is a program" if len(programs) == 1 else "are programs"
        sentences.append(f"{listed(programs)} {are} outside fedtune.")
    if pinned := c.first.workload.pinned:
        sentences.append(f"Fixed, not searched: {listed([f'{n} = {v}' for n, v in pinned.items()])}.")
    return [*sentences, *(f"Not alike, by the preset {c.options.preset}: {printable(line)}." for line in c.unlike)]


def _searched(c: ComparisonPlan, tested: Tested) -> list[str]:
    """The searches: how many, how long, what suggests, what stops early, which ranges are the same."""
    p, versions, k = c.first, tested.record.get("versions") or {}, len(c.searches)
    how, key = SEARCHERS[p.searcher]
    kind = searchers.find(p.searcher)
    of = f"of {several(c.trials, 'trial')}"
    times = f"by one search {of}" if k == 1 else f"by {k} searches {of}, which have draws and seeds of their own"
    sentences = [
        f"Each is tuned {times}, with fedtune{cite('fedtune')} on Ray Tune "
        f"{versions.get('ray', '')}{cite('liaw2018tune')}.".replace("  ", " "),
        f"Configurations are suggested by {how}{cite(key)}, in Optuna {versions.get('optuna', '')}"
        f"{cite('akiba2019optuna')}".replace("  ", " ")
        + ("." if kind.is_grid else "; the first trial of each search is the default configuration")
        + _unguided(kind.startup, c.trials) * (not kind.is_grid),
        f"A trial lasts at most {_budget(p)}" + (f", on each of {p.seeds} seeds." if p.seeds > 1 else "."),
        _stopped(p, tested.rungs),
    ]
    if c.before:
        sentences.append(
            "Ranges at whose end the best of some search lay were widened once, for all algorithms that share them. "
            f"Every search then went on: {c.before} of its {c.trials} trials are from before."
        )
    return [*sentences, *_ranges(c)]


def _unguided(startup: int, trials: int) -> str:
    """How many trials are drawn at random, because a searcher has not begun to learn."""
    if not startup:
        return "."
    clause = f"and the first {startup} are not guided by others" if trials > startup else "and so few are never guided"
    return f", {clause}."


def _budget(p: SearchPlan) -> str:
    """A trial's largest budget, in words."""
    unit = {"mb": "megabytes sent and received", "seconds": "seconds"}.get(p.budget.unit)
    return f"{p.budget.limit:g} {unit}" if unit else several(int(p.budget.limit), "round")


def _stopped(p: SearchPlan, rungs: Sequence[RungCount]) -> str:
    """What stops trials early, and how many went on from each rung.  rungs: of all searches together."""
    if p.scheduler not in SCHEDULERS or p.unjudged:
        return "No trial is stopped early."
    how, keys = SCHEDULERS[p.scheduler]
    text = f"Trials are stopped early by {how}{cite(*keys.split(','))}"
    unit = {"mb": "megabytes", "seconds": "seconds"}.get(p.budget.unit, "rounds")
    if stops := schedulers.rungs(p.scheduler, p.budget.limit, p.grace):
        at, brackets = listed([f"{stop:g}" for stop in stops]), p.scheduler == "hyperband"
        first, word = " in the first bracket" * brackets, "rungs" if len(stops) > 1 else "a rung"
        text = f"{text}, with {word}{first} at {at} {unit} and a reduction factor of {schedulers.REDUCTION}."
        counts = [f"{r.went_on} of {r.reached}{' went on' * (not i)} from {r.where}" for i, r in enumerate(rungs)]
        went = "" if brackets or not counts else f" Of the trials of all searches, {listed(counts)}."
        return text + went
    return f"{text}, from {p.grace:g} {unit} on."


def _ranges(c: ComparisonPlan) -> list[str]:
    """Which of the hyperparameters that every algorithm searches have the same range for all."""
    spaces = [p.space.text() for p in c.compared.values()]
    common = [n for n in spaces[0] if all(n in of for of in spaces)]
    if len(spaces) < 2 or not common:
        return []
    same = [n for n in common if len({of[n] for of in spaces}) == 1]
    other = [n for n in common if n not in same]
    sentences = [f"Of the hyperparameters that all have, {listed(same)} {_has(same)} one range for all."] * bool(same)
    return sentences + [f"The ranges of {listed(other)} differ between algorithms."] * bool(other)


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _selected(c: ComparisonPlan, tested: Tested) -> list[str]:
    """The metric that a search selects by, and its rows."""
    goal = c.first.goal
    by = printable(goal.in_words)
    sentences = [f"A search chooses by {by} at a trial's end, among the trials that it did not stop."]
    if c.first.choosing:
        sentences.append(
            f"It trains the best {TOP} of them on {several(len(c.first.choosing), f'more {c.first.run_word}')}, and "
            "names the one with the best mean over all; one that diverges on any is out."
        )
    on_test = [line for record in tested.records for line in verdict.on_test_rows(record)]
    if on_test:
        return sentences + [f"{one_line(line)}." for line in dict.fromkeys(on_test)]
    if all(n.startswith("val_") or n in METRICS for n in goal.names):
        sentences.append("No figure of test rows takes part in that.")
    return sentences


def _fresh(c: ComparisonPlan, tested: Tested) -> list[str]:
    """The runs on fresh seeds: configurations, seeds, and what the runs choose."""
    p, o = c.first, c.options
    best = "The best configuration" if o.candidates == 1 else f"The best {o.candidates} configurations"
    best = "The configuration named by" if p.choosing else f"{best} of"
    each = (", each" if o.seeds > 1 else "") + " with its own partition" if c.scenario_record else ""
    seeds = [
        f"searched on {_span([*of.selecting, *of.choosing])}, fresh {_span(of.fresh(o.seeds))}"
        for of in (s[next(iter(s))] for s in c.searches)
    ]
    sentences = [
        f"{best} each search and the default one are then trained on {several(o.seeds, 'fresh seed')}{each}. No "
        f"search has used them: {'; '.join(seeds)}."
    ]
    if o.candidates > 1:
        sentences.append(
            f"Of these {o.candidates} the one with the best mean {printable(p.goal.in_words)} on the fresh seeds is "
            "the tuned configuration."
        )
    sentences.append(f"We report {printable(tested.reported)} after the last round.")
    if unseeded := [name for name, q in c.compared.items() if not q.workload.traits.repeatable]:
        sentences.append(f"{listed(unseeded)} cannot be seeded; for it, seeds are repetitions.")
    return sentences


def _span(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"


def _judged(c: ComparisonPlan, tested: Tested) -> list[str]:
    """The tests, their correction, and the claims that they allow."""
    k, o = len(c.searches), c.options
    holm = f"corrected by Holm's method{cite('holm1979')}"
    if tested.pairs.empty:
        return ["With one algorithm there is nothing to test.", *_control(c, tested)]
    if k == 1 and o.seeds == 1:
        return ["With one search of each algorithm and one fresh seed nothing is tested."]
    if k == 1:
        sentences = [
            f"Algorithms are compared by paired t-tests over the {o.seeds} fresh seeds, {holm} over "
            f"{several(len(tested.pairs), 'pair')}, with 95 % intervals.",
            "With one search of each algorithm these know the luck of the seeds and not that of the search, so there "
            "is no verdict.",
        ]
    else:
        margin = f"{100 * o.margin:g} points" if comparison_text.in_percent(tested.pairs) else f"{o.margin:g}"
        sentences = [
            f"A search is the unit{cite('bouthillier2021variance')}: the mean over its fresh seeds is one number. "
            f"Two algorithms are compared by the {k} differences between searches on the same seeds, with a 95 % "
            f"interval and a {_test(len(tested.pairs))}.",
            f"Against a margin of {margin}, given beforehand, a difference is larger than the margin, or within it by "
            f"two one-sided tests at 2.5 % each{cite('schuirmann1987')}, or cannot be told.",
            f"These claims are made at 5 % for all together, {holm} over {several(len(tested.pairs), 'pair')}.",
        ]
    if len(tested.against):
        sentences.append(f"The tests against {listed(c.baselines)} are corrected once more by themselves.")
    return sentences + _control(c, tested)


def _control(c: ComparisonPlan, tested: Tested) -> list[str]:
    """Which algorithm took part twice, and how far it was from itself."""
    if not c.control:
        return []
    twice = f"As a control, {printable(c.control[0])} takes part twice, on the same seeds with other draws"
    differs = "" if tested.control.empty else f"; its difference is {comparison_text.from_itself(tested.control)}"
    return [f"{twice}{differs}."]


def _test(pairs: int) -> str:
    """The test of several searches, as `statistics.moderated` makes it of so many pairs."""
    if pairs == 1:
        return "paired t-test"
    return f"paired t-test whose variance is shrunk towards that of all pairs{cite('smyth2004')}"


def _by_budget(c: ComparisonPlan) -> list[str]:
    """How the figures against the number of trials are estimated."""
    means = [budgets.averaged(p) for of in c.searches for n, p in of.items() if n in c.compared]
    unit = "" if len(c.searches) == 1 else ", as a mean over searches with Student's interval"
    begun = f"Figures by the number of trials{cite('dodge2019')} are of what a search would have chosen then{unit}"
    begun += ", before further seeds decide" * bool(c.first.choosing)
    as_ran = "trials count in the order in which they ran, because they are not independent draws"
    orders = "all orders of trials after the default are averaged, as they are independent draws"
    if all(means):
        return [f"{begun}; {orders}{cite('tang2020')}."]
    if any(means):
        return [f"{begun}; {as_ran}; where they are, {orders.partition(',')[0]}{cite('tang2020')}."]
    return [f"{begun}; {as_ran}."]


def _versions(record: Mapping[str, Any]) -> str:
    """The versions and the commits of what ran."""
    versions = [f"{name} {version}" for name, version in (record.get("versions") or {}).items()]
    commits = [n for n in commits_of(record) if n]
    at = f"; fedtune's commit is {listed([n[:10] + '+' * n.endswith('+') for n in commits])}" if commits else ""
    return f"Versions: {', '.join(map(printable, versions))}{at}."
