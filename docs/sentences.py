"""What reports of searches can say, from searches that are made up for the page of examples."""

from __future__ import annotations

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
from fedtune.reporting import advice, sections
from fedtune.reporting.findings import Findings
from fedtune.runs.provenance import of_workload
from fedtune.studies.comparison.level_results import LevelResults
from fedtune.studies.comparison.tables import UNTOLD
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
    return LevelResults(record={"levels": ["epsilon=1", "epsilon=4"]}, table=table, against=against, refused={})


LOST = float("nan")
WHOLE: Any = SimpleNamespace(scheduler="asha", grace=6, budget=Budget("rounds", 6, 1))
UNJUDGED = SearchPlan.unjudged.fget(WHOLE)  # type: ignore[attr-defined]
NEVER = {"metrics": {"val_acc": {"split": "test"}}}
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
    pair = {"algorithm": "fedproto", "other": "fedavg", "difference": 0.01, "verdict": UNTOLD}
    for record, verdict in (({"searches": 1}, None), ({"searches": 3}, UNTOLD), ({"searches": 12}, UNTOLD)):
        pairs = pd.DataFrame([pair | {"verdict": verdict}])
        for a in advice.of_comparison(record, pairs, [search(config={"lr": 0.29})]):
            yield "What to try after a comparison", f"**{a.todo}.** {a.why}"
    for told in (("above", "cannot be told"), ("above", "above"), ("below", "cannot be told"), ("cannot be told",) * 2):
        yield "Who beats training alone at which level", _budget_study(*told).outcome
    yield "Who beats training alone at which level", _budget_study("", "").outcome


def page() -> str:
    """The sentences under their headings, each once."""
    headings: dict[str, dict[str, str]] = {}
    for heading, line in said():
        if line:
            pattern = re.sub(r"[−+]?\d[\d.]*", "0", line)  # sentences that differ in numbers alone are one
            headings.setdefault(heading, {}).setdefault(pattern, " ".join(line.split()))
    return "\n\n".join(f"## {name}\n\n- " + "\n- ".join(lines.values()) for name, lines in headings.items())
