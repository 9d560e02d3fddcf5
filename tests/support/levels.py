"""A budget study by hand: comparisons at several levels, each as its runs on fresh seeds leave it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedtune.core.about import FORMAT
from fedtune.core.objectives import ACCURACY
from fedtune.runs.files import write_json
from fedtune.studies.comparison import tables
from support.evaluations import evaluated, spent

MARGIN = 0.005


def runs(worth: Mapping[str, float], searches: int = 3) -> pd.DataFrame:
    """Runs on fresh seeds of algorithms with these accuracies, whose searches differ by about a third of a point."""
    stream, rows = np.random.default_rng(5), []
    luck = stream.normal(0, 0.01, (searches, 2))
    for name, level in worth.items():
        lift = 0.003 * stream.normal(size=searches)
        for k, s, (how, off) in itertools.product(range(searches), range(2), (("default", 0.05), ("top 1", 0.0))):
            acc = level + luck[k, s] + lift[k] - off
            figures = {"score": acc, "val_acc": acc, "test_acc": acc, "reason": "", "config/lr": 0.1}
            rows.append(evaluated(name, how, 10 * k + s, search=k + 1, trial="t", **figures))
    return pd.DataFrame(rows)


def study(
    folder: Path,
    worth: Mapping[str, Sequence[float]],
    levels: Sequence[str],
    *,
    name: str = "epsilon",
    done: int = 99,
    searches: int = 3,
    **left_out: str,
) -> Path:
    """A study's folder.  worth: accuracies at each level, by algorithm.  done: levels that are over."""
    told: dict[str, Any] = {"format": FORMAT, "algorithms": [*worth], "searches": searches, "margin": MARGIN}
    told |= {"scenario_name": "digits-w4", "scenario": {"dataset": "digits", "rounds": 6}, "objectives": ["val_acc"]}
    told |= {"command": ["fedtune", "compare", "--at", f"{name}={','.join(levels)}"], "trials": 8, "seeds": 2}
    budget = {"unit": "rounds", "limit": 6, "since": 1}
    for i, level in enumerate(levels):
        inner, state = folder / f"{name}={level}", "finished" if i < done else "waiting"
        inner.mkdir(parents=True)
        write_json(inner / "compare.json", told | {"budget": budget, "state": state, "left_out": left_out})
        if i < done:
            of = runs({a: values[i] for a, values in worth.items()}, searches)
            of.to_parquet(inner / "evaluations.parquet")
            tables.table(of, spent(worth), {}).to_csv(inner / "table.csv", index=False)
            tables.pairs(of, ACCURACY, MARGIN).to_csv(inner / "pairs.csv", index=False)
            tables.against(of, ["local"], ACCURACY, MARGIN).to_csv(inner / "against.csv", index=False)
    state = "finished" if done >= len(levels) else "interrupted"
    write_json(folder / "levels.json", told | {"state": state, "levels": [f"{name}={level}" for level in levels]})
    return folder
