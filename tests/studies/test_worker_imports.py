"""What a worker process loads before it trains: a search starts several, and each import costs every one of them."""

import subprocess
import sys

NEEDLESS = ("pandas", "ray.tune", "rich", "optuna", "sklearn", "scipy", "torchvision", "torch._dynamo", "sympy")

TRAINS = """
import sys
import ray
from fedtune.core.budget import Budget
from fedtune.core.workload import HERE
from fedtune.engine.built_in import ENGINE
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.studies import ray_tasks

experiment = Experiment(algorithm="fedavg", scenario=scenarios.find("digits-w4").override(rounds=1), trainer=ENGINE)
data = partitioning.make(experiment.scenario, experiment.seed)
(outcome,) = ray_tasks.train_seeds(experiment, {}, [0], HERE, data, budget=Budget(), objective=None)
assert len(outcome.rounds) == 1
print(*sys.modules)
"""


def test_a_worker_of_the_final_check_trains_without() -> None:
    result = subprocess.run([sys.executable, "-c", TRAINS], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not {*NEEDLESS} & {*result.stdout.split()}
