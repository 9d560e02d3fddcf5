"""What Ray Tune costs: a search of 16 trials against the same rounds trained without it in as many processes.

    python -m benchmarks.tune [--rounds N] [--processes N]

Both train the same 16 configurations of FedAvg on digits-w4 to their last round, and both start their processes within
the time.  Ray's own start, paid once a search, is reported beside.  With as many processes as cores, Ray's driver and
services take their share of those cores; with one less they do not, and that is the default.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from typing import Any

import torch

from fedtune.cluster import ray_start
from fedtune.core.memory import keep_freed_memory
from fedtune.engine import simulation
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.tuning import driver, plan
from fedtune.tuning.options.search import SearchOptions

CONFIGS = [{"lr": 0.005 + 0.001 * i} for i in range(16)]


def _begin(experiment: Experiment) -> None:
    global _experiment, _data
    torch.set_num_threads(1)
    keep_freed_memory()
    _experiment, _data = experiment, partitioning.make(experiment.scenario, experiment.seed)


def _train(config: dict[str, Any]) -> float:
    began = time.perf_counter()
    for _ in simulation.train(_experiment, config, _data):
        pass
    return time.perf_counter() - began


def with_tune(rounds: int, processes: int) -> tuple[float, float]:
    """Seconds of Ray's start, and of the search."""
    with tempfile.TemporaryDirectory() as folder:
        space = f"{folder}/space.py"
        with open(space, "w") as file:
            file.write(f"SPACE = {CONFIGS!r}\n")
        options = SearchOptions(
            algo="fedavg",
            fields={"rounds": rounds},
            space=space,
            scheduler="none",
            storage_path=folder,
            name="tune",
            max_concurrent=processes,
        )
        p = plan.make(options)
        p.points[:] = CONFIGS  # the default configuration is not trained on the other side
        data = partitioning.make(p.workload.scenario, p.workload.seed)
        began = time.perf_counter()
        with ray_start.connected(None, 1, p.gpus, dashboard=True):
            started = time.perf_counter()
            grid, _ = driver.fit(plan.StartedSearch(plan=p, workload=p.workload, prepared=[data], concurrent=processes))
            searched = time.perf_counter()
            assert len(grid) == len(CONFIGS) and all(grid[i].metrics["round"] == rounds for i in range(len(grid)))
    return started - began, searched - started


def without(rounds: int, processes: int) -> tuple[float, float]:
    """Mean seconds of a trial, and seconds of all."""
    experiment = Experiment(algorithm="fedavg", scenario=scenarios.find("digits-w4").override(rounds=rounds))
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(processes, _begin, (experiment,)) as pool:
        lasted = pool.map(_train, CONFIGS, chunksize=1)
        return sum(lasted) / len(lasted), time.perf_counter() - began


def measure(rounds: int = 120, processes: int = 0, repeats: int = 2) -> dict[str, float]:
    """Seconds with and without Tune, taking turns, the least of each; and their ratio.

    processes 0: one less than there are cores.
    """
    processes = processes or max(1, (os.cpu_count() or 1) - 1)
    turns = [(without(rounds, processes), with_tune(rounds, processes)) for _ in range(repeats)]
    trial, plain = min((t[0] for t in turns), key=lambda pair: pair[1])
    start, tuned = min((t[1] for t in turns), key=lambda pair: pair[1])
    return {
        "trials": len(CONFIGS),
        "rounds": rounds,
        "processes": processes,
        "trial_seconds": trial,
        "ray_start_seconds": start,
        "tune_seconds": tuned,
        "plain_seconds": plain,
        "ratio": tuned / plain,
    }


def line(got: dict[str, float]) -> str:
    return (
        f"Tune: {got['trials']} trials of {got['trial_seconds']:.1f} s on {got['processes']} processes: "
        f"{got['tune_seconds']:.1f} s with Tune, {got['plain_seconds']:.1f} s without, ratio {got['ratio']:.3f} "
        f"(target: at most 1.15); Ray's start {got['ray_start_seconds']:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--processes", type=int, default=0, help="default: one less than there are cores")
    args = parser.parse_args()
    print(line(measure(args.rounds, args.processes)))


if __name__ == "__main__":
    main()
