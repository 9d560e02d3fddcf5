"""The final check: the best and the default configuration on seeds that the search has not seen."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from fedtune.data import datasets
from fedtune.federated.experiment import with_seed
from fedtune.studies import ray_tasks
from fedtune.tuning.plan import Plan
from fedtune.tuning.space_types import Config

KEPT = ("test_acc", "val_acc", "comm_mb")


def check(p: Plan, data: datasets.Dataset, config: Config) -> pd.DataFrame:
    """Train the best and the default configuration on fresh seeds: new partitions, initialisations and samples.

    Returns a row per run; its accuracies are those of the last round.
    """
    default = p.default()
    candidates = {"best": config} if config == default else {"best": config, "default": default}
    runs = {
        (name, seed): ray_tasks.SeededRun(f"{name}, seed {seed}", with_seed(p.experiment, seed), values)
        for seed in p.fresh(p.final_seeds) for name, values in candidates.items()
    }  # fmt: skip
    named = {p.experiment.scenario.dataset: data}
    found = ray_tasks.run_all(
        list(runs.values()), named, None, p.cpus, p.gpus, p.budget, "final check", p.concurrent
    )
    rows = [{"configuration": n, "seed": s} | last_round(found[run.label]) for (n, s), run in runs.items()]
    frame = pd.DataFrame(rows, columns=["configuration", "seed", *KEPT, "reason"])
    return frame.sort_values(["configuration", "seed"], ignore_index=True)


def last_round(outcome: ray_tasks.Outcome) -> dict[str, Any]:
    """Accuracies and cost after a run's last round; not numbers if it diverged."""
    row = outcome.rounds[-1] if outcome.rounds and not outcome.reason else dict.fromkeys(KEPT, math.nan)
    return {k: row[k] for k in KEPT} | {"reason": outcome.reason}
