"""The final check: the best and the default configuration on seeds that the search has not seen."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import ray
import torch

from fedtune import datasets, federation
from fedtune.budget import Budget
from fedtune.cli import say
from fedtune.errors import Diverged
from fedtune.layers import keep_freed_memory
from fedtune.plan import Plan
from fedtune.simulation import Experiment, play, with_seed
from fedtune.space import Config


def check(p: Plan, data: datasets.Dataset, config: Config) -> pd.DataFrame:
    """The best and the default configuration on fresh seeds: new partitions, starts and draws.  A row per run.

    Test accuracy is of the last round.
    """
    default = {n: v for n, v in p.experiment.configuration({}).items() if n in p.space.names}
    candidates = {"best": config} if config == default else {"best": config, "default": default}
    seeds = [p.experiment.seed + p.seeds + i for i in range(p.final_seeds)]
    task = ray.remote(num_cpus=p.cpus, num_gpus=p.gpus)(replay)
    waiting, rows = {}, []
    for seed in seeds:
        dealt = ray.put(federation.deal(data, p.experiment.scenario, seed))
        for name, values in candidates.items():
            ref = task.remote(with_seed(p.experiment, seed), values, dealt, p.cpus, p.budget)
            waiting[ref] = {"configuration": name, "seed": seed}
    while waiting:
        done, _ = ray.wait(list(waiting))
        rows.append(waiting.pop(done[0]) | ray.get(done[0]))
        say(f"final check: {len(rows)} of {len(rows) + len(waiting)} runs done")
    frame = pd.DataFrame(rows, columns=["configuration", "seed", "test_acc", "val_acc", "comm_mb", "reason"])
    return frame.sort_values(["configuration", "seed"], ignore_index=True)


def replay(
    experiment: Experiment, config: Config, data: federation.Federation, cpus: float, budget: Budget
) -> dict[str, Any]:
    """Play one configuration to its end, or until its budget is used up (in a Ray task)."""
    keep_freed_memory()
    torch.set_num_threads(max(1, int(cpus)))
    try:
        seconds, row = 0.0, {}
        for row in play(experiment, config, data):
            seconds += row["seconds"] + row["eval_seconds"]
            if budget.reached(row, seconds):
                break
    except Diverged as error:
        return {"test_acc": math.nan, "val_acc": math.nan, "comm_mb": math.nan, "reason": str(error)}
    return {k: row[k] for k in ("test_acc", "val_acc", "comm_mb")} | {"reason": ""}


