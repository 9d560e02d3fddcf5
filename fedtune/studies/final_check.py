"""The final check: the best and the default configuration on seeds that the search has not seen."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedtune.runs import reading, tables
from fedtune.studies import fresh_seeds, ray_tasks
from fedtune.tuning.plan import StartedSearch
from fedtune.tuning.space_types import Config


def check(s: StartedSearch, config: Config) -> pd.DataFrame:
    """Train the best and the default configuration on fresh seeds: new partitions, initialisations and samples.

    Returns a row per run, with the metrics of its last round.  Each client's results are in the table of clients.
    Each run leaves a file, and is not trained again if the search is resumed.
    """
    p = s.plan
    default = p.default()
    candidates = {"best": config} if config == default else {"best": config, "default": default}
    runs = {
        (name, seed): ray_tasks.RunTask(
            f"{name}, {p.run_word} {seed}", s.workload.with_seed(seed, checking=True), values
        )
        for seed in p.fresh(p.options.final_seeds)
        for name, values in candidates.items()
    }
    more: Any = {"gpus": s.gpus, "concurrent": s.concurrent, "objective": p.goal.first}
    outcomes = fresh_seeds.trained(p, runs.values(), s.data, p.files.final_folder, title="final check", **more)
    if outcomes:
        algo = {"algorithm": p.workload.name}
        scored = [
            (algo | {"configuration": n, "seed": seed}, outcomes[r.label].clients) for (n, seed), r in runs.items()
        ]
        reading.write_table(tables.clients_frame(scored), p.files.clients_file)
    figures = p.workload.measures.figures
    rows = [
        {"configuration": n, "seed": seed} | fresh_seeds.last_round(outcomes[run.label], p.goal, figures)
        for (n, seed), run in runs.items()
    ]
    frame = pd.DataFrame(rows, columns=None if rows else ["configuration", "seed"])
    return frame.sort_values(["configuration", "seed"], ignore_index=True)
