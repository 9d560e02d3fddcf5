"""What reports can say, from searches and comparisons that are made up for the page of examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from fedtune.analysis import frames
from fedtune.analysis.plots import RESAMPLES, Importance
from fedtune.core.budget import Budget
from fedtune.core.objectives import Goal
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.reporting import advice, figures, findings, sections
from fedtune.reporting.findings import Findings
from fedtune.runs.provenance import of_workload
from fedtune.runs.tables import BORROWED, DEFAULT
from fedtune.runs.trial_states import UNTRAINED
from fedtune.studies.comparison import budgets, tables
from fedtune.studies.comparison.level_results import LevelResults
from fedtune.studies.comparison.results import Results
from fedtune.tuning.checked import FinalCheck
from fedtune.tuning.plan import SearchPlan

SPACE = {"lam": "0.1..10 log", "lr": "0.001..0.3 log"}
INSIDE = {"lam": 1.0, "lr": 0.02}
SCORES = (0.95, 0.94, 0.9, 0.8)
ENDS = ("diverged", "failed", "stopped", "finished")


def search(
    best: tuple[float, ...] = (), default: tuple[float, ...] = (), scores: tuple[float, ...] = SCORES, **more: Any
) -> Findings:
    """A search of trials with these scores, and its check: test accuracy of best and default on fresh seeds.

    more: entries of the record; also `config`, the best values, and `ends`, how trials ended.
    """
    config, ends = INSIDE | more.pop("config", {}), more.pop("ends", ("finished",) * len(scores))
    experiment = Experiment(algorithm="fedproto", scenario=Scenario(clients=5, rounds=6))
    record = of_workload(experiment) | {"command": ["fedtune", "search", "fedproto"], "space": SPACE, "searcher": "tpe"}
    record |= {"state": "finished", "trials": len(scores), "objectives": ["val_acc"]} | more
    record["declared"] = {name: experiment.hyperparameters()[name].to_record() for name in SPACE}
    goal = Goal.from_record(record)
    trials = pd.DataFrame({"trial": [f"t{i}" for i in range(1, len(scores) + 1)], "rounds": 6})
    trials["status"] = pd.Categorical(ends, frames.STATUSES)
    trials = trials.assign(last_val_acc=scores, last_test_acc=0.93, last_comm_mb=4.0, comm_mb=4.0, reason="")
    trials.loc[trials["status"] == "diverged", "reason"] = "the loss is not finite in round 2"
    trials.loc[trials["status"] == UNTRAINED, "reason"] = f"{UNTRAINED}: epsilon would be 9 at its end"
    trials = trials.assign(**{f"config/{n}": v for n, v in config.items()})
    told = [("best", i, v) for i, v in enumerate(best, 1)] + [("default", i, v) for i, v in enumerate(default, 1)]
    rows = [
        {"configuration": n, "seed": s, "test_acc": v, "val_acc": v, "comm_mb": 4, "reason": ""} for n, s, v in told
    ]
    check = FinalCheck(pd.DataFrame(rows), goal.first, record.get("repeatable", True)) if rows else None
    chosen = trials.iloc[0] if record["state"] != "nothing found" and len(scores) else None
    return Findings(
        run=Path("runs/NAME"),
        record=record,
        trials=trials,
        rounds=pd.DataFrame(),
        state=record["state"],
        best=chosen,
        config=config,
        yaml="",
        scenario="digits-w4",
        default={},
        check=check,
    )


def _budget_study(*told: str) -> LevelResults:
    """Two algorithms at ε = 4, and at 1, where nothing can be told.  told: how each is to `local`; "" by one search."""
    names = ("fedavg", "moon")
    table = pd.DataFrame({"level": ["1", "4"], "algorithm": "local", "metric": "test_acc"})
    row = {"other": "local", "metric": "test_acc"}
    at = {"1": ("cannot be told" * any(told),) * 2, "4": told}
    rows = [
        row | {"algorithm": n, "level": lv, "told": t} for lv, of in at.items() for n, t in zip(names, of, strict=True)
    ]
    against = pd.DataFrame(rows).assign(verdict=lambda frame: frame["told"])
    return LevelResults(
        record={"levels": ["epsilon=1", "epsilon=4"]}, table=table, against=against, refused={}, unequal={}
    )


LOST = float("nan")
WHOLE: Any = SimpleNamespace(scheduler="asha", grace=6, budget=Budget("rounds", 6, 1))
UNJUDGED = SearchPlan.unjudged.fget(WHOLE)  # type: ignore[attr-defined]
NEVER: dict[str, Any] = {"metrics": {"val_acc": {"split": "test"}}}
SEARCHES = (
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9)),
    search((0.84, 0.85, 0.86), (0.9, 0.9, 0.9)),
    search((0.92, 0.94, 0.96), (0.9, 0.9, 0.9)),
    search((0.94,), (0.9,)),
    search((0.94, 0.94, 0.94), (0.9, 0.9, 0.9)),
    search((0.94, LOST, 0.88), (0.9, 0.9, 0.9)),
    search((0.94, 0.95, 0.96)),
    search((0.94, 0.96), (0.9, 0.91), repeatable=False),
    search((0.94,), (0.9,), repeatable=False),
    search(),
    search(state="running", trials=8, ends=("finished", "stopped", "running", "waiting")),
    search(state="abandoned"),
    search(state="interrupted", reason="SIGTERM"),
    search(state="failed", reason="the disk is full"),
    search(state="nothing found", scores=(LOST, LOST), ends=("diverged", "diverged")),
    search(state="nothing found", scores=(LOST, LOST), ends=(UNTRAINED,) * 2),
    search((0.12, LOST, 0.1), (0.1, 0.12, LOST), scores=(0.12, 0.1), ends=("finished", "diverged")),
    search((0.12, 0.1), (0.1, 0.12), scores=(0.12, 0.1)),
    search(scores=(), state="running"),
    search(state="nothing found", constraints=["comm_mb<=2"]),
    search((0.94, 0.96), (0.9, 0.9), constraints=["comm_mb<=5"]),
    search((0.94, 0.96), (0.9, 0.9), objectives=["val_acc", "comm_mb"]),
    search((0.94, 0.96), (0.9, 0.9), ends=ENDS[2:] + ENDS[:2]),
    search((0.94, 0.96), (0.9, 0.9), scheduler="pbt", ends=("stopped",) * 4),
    search((0.94, 0.96), (0.9, 0.9), config={"lr": 0.29}, scheduler="asha", unjudged=UNJUDGED),
    search((0.94, 0.96), (0.9, 0.9), config={"lam": 10.0}, **NEVER),
    search((0.94, 0.96), (0.9, 0.9), scores=(0.95,)),
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9), scores=(0.95, 0.948, 0.9)),
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9), scores=(0.95, 0.95, 0.9)),
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9), scores=(0.95, 0.91, 0.9)),
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9), scores=(0.95, 0.6, 0.6, 0.6)),
    search((0.94, 0.95, 0.96), (0.9, 0.9, 0.9), scores=(0.95, 0.9, 0.9, 0.9)),
)
SHARES = {"lr": 0.7, "lam": 0.02}
RANGES = {"lr": (0.5, 0.9), "lam": (0.0, 0.04)}
IMPORTANCES = (
    None,
    Importance(SHARES, RESAMPLES, 12, RANGES),
    Importance({"lr": 0.5, "lam": 0.4}, 11, 12, {"lr": (0.1, 0.9), "lam": (0.1, 0.9)}),
)


LEVELS = (0.0, 0.002, -0.001)  # how searches, and fresh seeds, differ
COSTS = {"rounds_to_95": 3, "mb_to_95": 2.0, "mb_per_round": 0.5, "seconds": 1.0, "test_acc_std": 0.1}


def comparison(metric: str = "val_acc", searches: int = 3, reason: str = "diverged", **worth: Any) -> Results:
    """A comparison of algorithms with these figures on fresh seeds, of fedavg and perhaps its control.

    worth: of an algorithm its figure, or that of each search, NaN for a run that was lost.  Other words are entries of
    the record; also `reason`, how a run was lost, `named`, the candidate that is tuned, and `gain`, what tuning gained
    in each search.
    """
    more = {n: worth.pop(n) for n in [*worth] if n in RECORDED}
    gain = more.pop("gain", (0.03, 0.031, 0.032))
    named, control = more.pop("named", "top 1"), more.pop("control", [])
    worth = {n.replace("_", "-"): v if isinstance(v, tuple) else (v,) * searches for n, v in worth.items()}
    goal = Goal.from_record({"objectives": [metric]})
    tested, lender = goal.first.tested, more.get("lender", "")
    rows: list[dict[str, Any]] = []
    for i, (name, each) in enumerate(worth.items()):
        for k, value in enumerate(each):
            configurations = [DEFAULT, "top 1", named] + [BORROWED] * bool(lender and name != lender)
            for of, seed in itertools.product(dict.fromkeys(configurations), range(2 if searches > 1 else 3)):
                figure = value + LEVELS[(k + i) % 3] + LEVELS[seed] - gain[k] * (of in (DEFAULT, BORROWED))
                row = {"algorithm": name, "configuration": of, "chosen": of == named, "search": k + 1, "trial": "t1"}
                row |= {"seed": 10 * k + seed, "score": 0.9, "config/lr": 0.29, metric: figure, tested: figure}
                rows.append(COSTS | {"val_acc": figure, "test_acc": figure} | row)
                rows[-1]["reason"] = reason if math.isnan(figure) else ""
    runs, margin = pd.DataFrame(rows), more.setdefault("margin", 0.005)
    compared = runs[~runs["algorithm"].isin(control[1:])]
    spent = {n: {"trials": 16, "rounds": 90, "mb": 40.0, "seconds": 30.0} for n in worth}
    record = {"algorithms": [*worth], "trials": 16, "seeds": 2, "searches": searches, "control": control} | more
    record |= {
        "scenario_name": "digits-w4",
        "scenario": vars(Scenario()),
        "budget": {"unit": "rounds", "limit": 20, "grace": 3},
    }
    every = tables.table(runs, spent, {}, goal.first, lender)
    return Results(
        record=record | goal.to_record(),
        evaluations=runs,
        table=tables.control_last(every, control),
        pairs=tables.pairs(compared, goal.first, margin),
        against=tables.against(compared, ["local"] if "local" in worth else [], goal.first, margin),
        twice=tables.control(runs, control, goal.first, margin),
        by_budget=pd.DataFrame(columns=list(budgets.COLUMNS)),
    )


RECORDED = ("gain", "named", "control", "lender", "margin", "widened", "unlike", "unborrowed", "options", "unequal")
TWICE = ["fedavg", "fedavg-again"]
WIDER = "lr to 0.001..1 log, as fedrep's best has lr = 0.29 at its upper end"
OPEN = comparison(fedrep=0.9, fedavg=(0.86, 0.9, 0.94), local=(0.95, 0.89, 0.85), fedavg_again=0.95, control=TWICE)
COMPARISONS = (
    comparison(fedrep=0.96, fedavg=0.9, local=0.8, fedavg_again=0.9, control=TWICE, lender="fedavg"),
    OPEN,
    dataclasses.replace(OPEN, against=OPEN.against.assign(verdict=tables.LARGER)),
    comparison(fedrep=0.96, fedavg=(0.96, 0.95, 0.97), local=0.9, fedavg_again=(0.9, 0.95, 0.91), control=TWICE),
    comparison(fedrep=0.96, fedprox=0.96, fedavg=0.96, local=0.96, margin=0.05),
    comparison(fedrep=0.96, fedprox=0.96, fedavg=0.96, local=0.95, margin=0.05, gain=(-0.03, -0.031, -0.032)),
    comparison(fedrep=0.96, fedavg=0.9, gain=(0.0, 0.0, 0.0)),
    comparison(fedrep=0.96, fedavg=0.9, gain=(0.1, 0.0, -0.05)),
    comparison(fedrep=0.96, fedavg=(LOST, 0.9, 0.91), local=0.8, fedavg_again=(LOST, 0.9, 0.9), control=TWICE),
    comparison(fedrep=0.96, fedavg=(LOST, 0.9, 0.91), reason="failed: exit status 1", named="top 2"),
    comparison(searches=1, fedrep=(0.96,), fedavg=(0.9,), local=(0.8,)),
    comparison(searches=1, fedrep=(0.96,)),
    comparison("val_loss", fedrep=0.3, fedavg=0.4, local=0.8),
    comparison(
        fedrep=0.96,
        fedavg=0.9,
        widened=[WIDER],
        unborrowed=["fedrep is not trained with the values of fedavg's search 1: it found nothing"],
        unlike=["fedrep trains its head first"],
        options={"preset": "as_published"},
        unequal=["fedrep sends nothing"],
    ),
    comparison(fedrep=0.96, fedavg=0.9, options={"selects_on_test": True}),
)


def compared(found: Results) -> Iterator[tuple[str, str]]:
    """What the report of a comparison says, with the headings."""
    names, record = found.record["algorithms"], dict(found.record)
    searched = {n: search(repeatable=False, **NEVER).record | {"algorithm": n} for n in names[-1:]}
    yield "What a comparison found", found.outcome
    yield from (("What was compared", sections.done(record, over, True)) for over in (True, False))
    yield "What was compared", sections.done(record, False, False)
    yield from (("Caveats of a comparison", findings.sentence(line, names)) for line in found.caveats(searched))
    for shown in itertools.chain(*figures.of_comparison(found).values()):
        yield "Above the figures of a comparison", shown.sentence
    for title, _, _ in found.titled:
        yield "Above the tables of a comparison", f"{title[:1].upper()}{title[1:]}"


def said() -> Iterator[tuple[str, str]]:
    """Every sentence with the heading that it stands under; the same one may come again."""
    for f in SEARCHES:
        yield "What was found", sections.lead(f)
        yield "How trials ended", f.counts()
        yield "How sure is that?", f.ended()
        yield from (("What to know first", line) for line in f.first_warnings())
        yield from (("Caveats", line) for line in f.warnings())
        for a in advice.of_search(f, None):
            yield "What to try next", f"**{a.todo}.** {a.why}"
    for importance in IMPORTANCES:
        for a in advice.what_mattered(SEARCHES[0], importance):
            yield "What to try next", f"**{a.todo}.** {a.why}"
    for found in COMPARISONS:
        yield from compared(found)
    pair, untold = {"algorithm": "fedproto", "other": "fedavg", "difference": 0.01}, tables.UNTOLD
    for record, verdict in (({"searches": 1}, None), ({"searches": 3}, untold), ({"searches": 12}, untold)):
        pairs = pd.DataFrame([pair | {"verdict": verdict}])
        for a in advice.of_comparison(record | {"margin": 0.005}, pairs, [search(config={"lr": 0.29})]):
            yield "What to try after a comparison", f"**{a.todo}.** {a.why}"
    for told in (("above", "cannot be told"), ("above", "above"), ("below", "cannot be told"), ("cannot be told",) * 2):
        yield "Who beats training alone at which level", _budget_study(*told).outcome
    yield "Who beats training alone at which level", _budget_study("", "").outcome


def page() -> str:
    """The sentences under their headings, each once."""
    headings: dict[str, dict[str, str]] = {}
    for heading, line in said():
        if line:
            pattern = re.sub(r"[−+]?\d[\d.]*|fed\w+(-again)?|local\b", "0", line)  # which differ in these alone are one
            headings.setdefault(heading, {}).setdefault(pattern, " ".join(line.split()))
    return "\n\n".join(f"## {name}\n\n- " + "\n- ".join(lines.values()) for name, lines in headings.items())
