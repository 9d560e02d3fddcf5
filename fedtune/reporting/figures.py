"""The figures of a report, in their order, each with a sentence on how to read it."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from plotly.graph_objects import Figure

from fedtune.analysis import frames, plots
from fedtune.analysis.cost_plots import price
from fedtune.core.objectives import Objective, parse
from fedtune.reporting import sampling
from fedtune.reporting.findings import Findings, unit_of
from fedtune.reporting.templates import embedded
from fedtune.runs.files import RunFiles
from fedtune.runs.tables import BORROWED
from fedtune.studies.comparison.level_results import LOCAL, LevelResults
from fedtune.studies.comparison.results import OF_PAIRS, OF_TUNED, Results
from fedtune.studies.comparison.text import paired

if TYPE_CHECKING:
    from optuna import Study

LARGEST = 2_000_000  # characters of one figure; a larger one would make the page slow
FRONT = "Pareto front: no other round is better in both."
PAIR = f"{FRONT} Beyond its bend, giving up more of one gains little of the other."
REST = f"{FRONT} Of two costs that grow it is first rounds: compare the slopes."
TOP = 24  # pixels above the axes, where the figure's title was


class Shown(NamedTuple):
    """A figure in the page, or why it is missing."""

    title: str
    note: str  # n, and what was left out
    sentence: str
    spec: str  # JSON of its data and layout; "" if it could not be drawn
    why: str


def of_search(f: Findings, study: Study | None, importance: plots.Importance | None) -> dict[str, list[Shown]]:
    """The figures of a search, by what they tell.  study: of all its trials.  importance: what mattered there."""
    fronts, more = _fronts(f)
    return {
        "found": [*fronts, _found(f)] if len(f.trials) else [],
        "sure": _clients(f),
        "mattered": _hyperparameters(f, study, importance),
        "trials": [*_progress(f), *more],
    }


def _found(f: Findings) -> Shown:
    star = f"the star is the best{' on more seeds' * bool(f.record.get('choice'))}, " * (f.best is not None)
    sentence = f"Each mark is a trial's last {f.in_words}; {star}the line is the best finished one so far."
    below = " Below: the best and the default configuration on fresh seeds, with means and 95 % intervals."
    sentence += " The line counts those that break a constraint, too." * bool(f.goal.constraints)
    best, runs = "" if f.best is None else str(f.best["trial"]), f.check.runs if f.check else None
    make = partial(plots.found, f.trials, f.goal.first, best, runs)
    return drawn("What the trials found", make, sentence + below * (runs is not None))


def _sampled(shown: Shown, f: Findings) -> Shown:
    """A figure of single trials, with a note on those that it leaves out."""
    return shown._replace(note="; ".join(filter(None, [shown.note, sampling.note(f)])))


def _progress(f: Findings) -> list[Shown]:
    first = f.goal.first
    some = sampling.drawn(f)
    curves = drawn(
        "Learning curves",
        lambda: plots.learning_curves(some.rounds, some.trials, metric=first.name, mode=first.mode),
        "Short lines are stopped trials. If lines still rise at the end, more rounds would help. If lines cross, early "
        "stopping can drop good trials.",
    )
    return [
        _sampled(curves, f),
        drawn(
            "Rungs",
            lambda: plots.rung_survival(f.trials, f.rounds, f.record.get("rungs") or [], unit_of(f.record), first.name),
            "Which trials were continued at each rung. Trials just below the cut may have been stopped by chance.",
        ),
    ]


def _fronts(f: Findings) -> tuple[list[Shown], list[Shown]]:
    """The fronts that answer what a search of several objectives asks, and those that stand further down."""
    first, *others = f.goal.objectives
    asked = [_front(f, first, other) for other in others]
    rest = [_front(f, *pair) for pair in itertools.combinations(others, 2)]
    if f.sends and "comm_mb" not in [o.name for o in f.goal.objectives]:
        rest.insert(0, _front(f, first, *parse("comm_mb")))
    every = drawn(
        "All objectives",
        partial(plots.tradeoffs, f.rounds, f.goal.objectives),
        "A line is a round that no other beats in all objectives, and further up is better. Where lines cross between "
        "two axes, one is paid for with the other.",
    )
    return [every] * (len(others) > 1) + asked, rest


def _front(f: Findings, one: Objective, other: Objective) -> Shown:
    cost = price(f.rounds, one, other) if other in f.goal.objectives else ""
    return drawn(
        "Accuracy against communication" if other.name == "comm_mb" else f"{one.name} against {other.name}",
        partial(plots.accuracy_communication, f.rounds, other, first=one),
        f"{PAIR} {cost}".strip() if one == f.goal.first else REST,
    )


def _hyperparameters(f: Findings, study: Study | None, shares: plots.Importance | None) -> list[Shown]:
    sample = sampling.of_study(study, f)
    of_study = [
        drawn(
            "Slices",
            lambda: plots.slices(sample),
            "A slope or a hump shows where good values lie. In a flat cloud the value matters little.",
        ),
        drawn(
            "Parallel coordinates",
            lambda: plots.parallel(sample),
            "Where the lines of the best trials run close together, the value matters.",
        ),
    ]
    importance = drawn(
        "Importance",
        lambda: plots.importance(study, shares),
        "A hyperparameter with a low share made little difference between these trials. With few trials this "
        "is a rough guess.",
    )
    return [importance, *(_sampled(shown, f) for shown in of_study)]


def _clients(f: Findings) -> list[Shown]:
    file = RunFiles(f.run).clients_file
    if not file.exists():
        return []
    last = frames.clients(f.run).query("scored == 'last'")
    if last.empty:  # nothing is known of a program's clients
        return []
    sentence = (
        "All clients of all fresh seeds, after the last round. A steep left end means that some clients do much worse."
    )
    return [drawn("Clients", lambda: plots.per_client(last, by="configuration"), sentence)]


def of_comparison(found: Results) -> dict[str, list[Shown]]:
    """The figures of a comparison by their heading: the algorithms first, then the pairs, and what searches saw."""
    if found.evaluations.empty:
        return {}
    by_algorithm = partial(plots.comparison, found.evaluations, found.objective, found.control)
    lent = BORROWED in set(found.evaluations["configuration"])  # what was refused was not trained
    whose = f"Borrowed: with {found.record.get('lender')}'s tuned values where both have them, else its own defaults."
    said = [whose] * lent
    said += [f"Overlapping intervals do not say whether two differ: “{OF_PAIRS}” below does."] * (len(found.pairs) > 0)
    figures = {"first": [drawn("Comparison", by_algorithm, " ".join(said))]}
    if len(found.pairs):
        sentence = f"Differences are {paired(found.pairs, found.searches, found.margin)}."
        figures[OF_PAIRS] = [drawn("Pairs", partial(plots.pairs, found.pairs, found.objective), sentence)]
    if len(found.by_budget):
        sentence = (
            "What a search of so many trials would have chosen, by the score that it sees. If lines cross late, the "
            "order needs that many trials. The verdicts are of fresh seeds, and stand apart."
        )
        by_budget = partial(plots.by_budget, found.by_budget, found.objective)
        figures[OF_TUNED] = [drawn("Against budget", by_budget, sentence)]
    return figures


def of_levels(found: LevelResults) -> dict[str, list[Shown]]:
    """The figure of a budget study."""
    sentence = f"Filled: shown to beat {LOCAL}, with all pairs and levels taken together. Bars are 95 % intervals."
    make = partial(plots.by_level, found.table, found.budget)
    return {"first": [drawn("At each level", make, sentence)]} if found.levels else {}


def drawn(name: str, make: Callable[[], Figure], sentence: str) -> Shown:
    """The figure with its title outside, where it wraps; or why it could not be drawn, as the report goes on."""
    try:
        figure = make()
        title, *rest = map(_plain, re.split("(?=<span)", figure.layout.title.text or "", maxsplit=1))
        note = "".join(rest)
        if not figure.data:
            return Shown(title, note, sentence, "", _plain(" ".join(a.text for a in figure.layout.annotations)))
        height, top = figure.layout.height or 450, figure.layout.margin.t or 100
        figure.update_layout(title=None, height=height - top + TOP, margin={"t": TOP})
        spec = figure.to_json()
    except Exception as error:  # a run can be in any state, and Optuna has its own reasons
        return Shown(name, "", sentence, "", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    if len(spec) > LARGEST:
        return Shown(title, note, sentence, "", f"it has {len(spec) / 1e6:.0f} MB; a notebook can show it")
    return Shown(title, note, sentence, embedded(spec), "")


def _plain(text: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))
