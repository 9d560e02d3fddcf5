"""A run as a Ray task trains it, in this process."""

from typing import Any

from fedtune.core.budget import Budget
from fedtune.core.objectives import Objective
from fedtune.core.workload import Place, Workload
from fedtune.studies import ray_tasks


def outcome_of(
    workload: Workload, config: Any, data: Any, budget: Budget, objective: Objective | None = None
) -> ray_tasks.Outcome:
    seeds, at = [workload.seed], Place(cpus=1)
    return ray_tasks.train_seeds(workload, config, seeds, at, data, budget=budget, objective=objective)[0]
