"""The final check: the best and the default configuration on seeds that the search has not seen."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedtune.core.metrics import kept_of
from fedtune.core.objectives import Goal
from fedtune.data import datasets
from fedtune.federated.experiment import with_seed
from fedtune.runs import clients, reading
from fedtune.studies import ray_tasks
from fedtune.tuning.plan import Plan
from fedtune.tuning.space_types import Config


def check(p: Plan, data: datasets.Dataset, config: Config) -> pd.DataFrame:
    """Train the best and the default configuration on fresh seeds: new partitions, initialisations and samples.

    Returns a row per run; its metrics are those of the last round.  How each client did is in the table of clients.
    """
    default = p.default()
    candidates = {"best": config} if config == default else {"best": config, "default": default}
    runs = {
        (name, seed): ray_tasks.SeededRun(f"{name}, seed {seed}", with_seed(p.experiment, seed), values)
        for seed in p.fresh(p.final_seeds) for name, values in candidates.items()
    }  # fmt: skip
    named = {p.experiment.scenario.dataset: data}
    found = ray_tasks.run_all(
        list(runs.values()), named, None, p.cpus, p.gpus, p.budget, "final check", p.concurrent, p.goal.first,
        "seconds" in p.goal.names,
    )
    if found:
        whose = {"algorithm": p.experiment.algorithm}
        scored = [(whose | {"configuration": n, "seed": s}, found[r.label].clients) for (n, s), r in runs.items()]
        reading.write_table(clients.table(scored), p.files.clients_file)
    rows = [{"configuration": n, "seed": s} | last_round(found[run.label], p.goal) for (n, s), run in runs.items()]
    frame = pd.DataFrame(rows, columns=None if rows else ["configuration", "seed"])
    return frame.sort_values(["configuration", "seed"], ignore_index=True)


def last_round(outcome: ray_tasks.Outcome, goal: Goal) -> dict[str, Any]:
    """The metrics of a run's last round that are kept, with those of the goal; not numbers if it diverged."""
    there = bool(outcome.rounds) and not outcome.reason
    row = kept_of(outcome.rounds[-1] if there else {}, *goal.names)
    if there and "seconds" in row:
        row["seconds"] = outcome.seconds
    return row | {"reason": outcome.reason}
