"""The paragraph of method that a paper can take: what a comparison ran, in the sentences of `method.j2`.

Every sentence is made from the plan, the tables and the record, so that none says more than was done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedtune.core.accounting import accountant
from fedtune.core.metrics import METRICS
from fedtune.core.terminal import one_line, printable, several
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.privacy import Privacy
from fedtune.experiment.scenario import Scenario
from fedtune.programs.naming import is_program
from fedtune.runs.choice import TOP
from fedtune.runs.overview import RungCount
from fedtune.runs.reading import commits_of
from fedtune.studies.comparison import budgets
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.comparison.citations import cite
from fedtune.studies.comparison.plan import ComparisonPlan
from fedtune.studies.comparison.results import SEARCHED, Results, scenario_words
from fedtune.studies.comparison.text import listed
from fedtune.studies.options import variant
from fedtune.tuning import schedulers, searchers, verdict

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
    "front": ("asynchronous successive halving by non-dominated sorting", "li2020asha,schmucker2021,deb2002nsga2"),
    "hyperband": ("asynchronous Hyperband in three brackets", "li2018hyperband,li2020asha"),
    "median": ("the median stopping rule", "golovin2017vizier"),
}
ACCOUNTANTS = {"pld": "privacy loss distributions", "rdp": "Rényi accountant"}
UNITS, LONG_UNITS = (
    {"mb": mb, "seconds": "seconds", "sim_seconds": "device seconds"}
    for mb in ("megabytes", "megabytes sent and received")
)
ENVIRONMENT = Environment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(Path(__file__).parent)
)


class Ran(NamedTuple):
    """What is known of the searches that ran."""

    unequal: Sequence[str]  # where budgets were not equal, in words
    records: Sequence[Mapping[str, Any]]
    rungs: Sequence[RungCount] = ()  # how many trials of all searches reached each rung and went on


def sentences(c: ComparisonPlan, found: Results, ran: Ran) -> list[str]:
    """The method, sentence by sentence, with marked citations."""
    facts = _of_plan(c) | _of_searches(c, ran) | _of_results(c, found)
    words = {"plain": _plain, "listed": listed, "cite": cite, "several": several, "all": all, "any": any}
    made = ENVIRONMENT.get_template("method.j2").render(
        c=c, p=c.first, o=c.options, found=found, ran=ran, **facts, **words
    )
    return [line for line in made.splitlines() if line]


def _plain(text: object) -> str:
    """A text of a run, which is no sentence's end."""
    return printable(one_line(str(text)))


def _of_plan(c: ComparisonPlan) -> dict[str, Any]:
    compared, first_searches = c.compared.items(), (next(iter(of.values())) for of in c.searches)
    has_variants = any(variant(name)[1] for name, _ in compared)
    workload = c.first.workload
    scenario = workload.resolve({})[1] if isinstance(workload, Experiment) else Scenario()
    private = Privacy.of(scenario)
    return {
        "k": len(c.searches),
        "programs": [name for name, p in compared if is_program(p.options.algo)],
        "pinned": [f"{n} = {v}" for n, v in c.pinned.items()] + ["the values in brackets"] * has_variants,
        "unseeded": [name for name, p in compared if not p.workload.traits.repeatable],
        "seeds": [
            f"searched on {_span([*p.selecting, *p.choosing])}, fresh {_span(p.fresh(c.options.seeds))}"
            for p in first_searches
        ],
        "top": TOP,
        "private": private,
        "accountant": ACCOUNTANTS[accountant(private.noise or 1.0)] if private else "",
        "target": scenario.epsilon,
        "where": scenario_words(c.to_record() | {SEARCHED: {n for p in c.plans.values() for n in p.space.names}}),
    }


def _of_searches(c: ComparisonPlan, ran: Ran) -> dict[str, Any]:
    p, (suggests, suggests_cites) = c.first, SEARCHERS[c.first.searcher]
    stops_by, stops_cites = SCHEDULERS.get(p.scheduler, ("", "")) if not p.unjudged else ("", "")
    unit, limit = UNITS.get(p.budget.unit, "rounds"), p.budget.limit
    spaces = [q.space.text() for q in c.compared.values()]
    common = [n for n in spaces[0] if len(spaces) > 1 and all(n in of for of in spaces)]
    same = [n for n in common if len({of[n] for of in spaces}) == 1]
    on_test = dict.fromkeys(line for record in ran.records for line in verdict.on_test_rows(record))
    validated = all(n.startswith("val_") or n in METRICS for n in p.goal.names)
    return {
        "kind": searchers.find(p.searcher),
        "suggests": suggests,
        "suggests_cites": suggests_cites,
        "budget": several(int(limit), "round") if unit == "rounds" else f"{limit:g} {LONG_UNITS[p.budget.unit]}",
        "unit": unit,
        "stops_by": stops_by,
        "stops_cites": stops_cites,
        "stops": [f"{stop:g}" for stop in schedulers.rungs(p.scheduler, limit, p.grace)] if stops_by else [],
        "in_brackets": p.scheduler == "hyperband",
        "reduction": schedulers.REDUCTION,
        "counts": [f"{r.went_on} of {r.reached}{' went on' * (not i)} from {r.where}" for i, r in enumerate(ran.rungs)],
        "same_ranges": same,
        "other_ranges": [n for n in common if n not in same],
        "goal": _plain(p.goal.in_words),
        "on_test": list(on_test),
        "validated": validated and not on_test,
    }


def _of_results(c: ComparisonPlan, found: Results) -> dict[str, Any]:
    of_versions = found.record.get("versions") or {}
    commits = [n for n in commits_of(found.record) if n]
    return {
        "tops": comparison_text.tops(found.evaluations),
        "pairs": len(found.pairs),
        "margin": comparison_text.sized(c.options.margin, found.pairs),
        "differs": "" if found.twice.empty else comparison_text.from_itself(found.twice),
        "means": [budgets.averaged(p) for of in c.searches for n, p in of.items() if n in c.compared],
        "version": lambda name: f" {of_versions[name]}" if name in of_versions else "",
        "versions": [_plain(f"{name} {version}") for name, version in of_versions.items()],
        "commits": [n[:10] + "+" * n.endswith("+") for n in commits],
    }


def _span(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}–{seeds[-1]}"
