"""What a trial of a search costs in a process that trained others before, against one that shares nothing with them.

    python -m benchmarks.trials [--json FILE] [--trials 8] [--turns 2]

The trials are drawn from the default space and stopped after as many rounds as the first rung allows.  Both ways train
the same ones, in turns, and must find the same figures; counted is the processor's time.  A ratio is the sum alone over
the sum of those that share: more than 1 is saved.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtune import tracing
from fedtune.core import memory
from fedtune.core.errors import Diverged
from fedtune.data.federation import Federation
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.tuning import space

# algorithm, scenario, rounds
CASES = [
    ("gfpl", "digits-shards", 6),
    ("fedpa", "digits-shards", 6),
    ("fedprox", "digits-shards", 6),
    ("gfpl", "gfpl-fmnist-few", 6),
]
CLOCK = ("seconds", "eval_seconds")


def drawn(experiment: Experiment, trials: int) -> list[dict[str, Any]]:
    """Configurations at random."""
    np.random.seed(0)  # which Ray's domains draw from
    domains = space.load("default", experiment).domains
    return [{name: domain.sample() for name, domain in domains.items()} for _ in range(trials)]


def trained(
    experiment: Experiment, configs: list[dict[str, Any]], data: Federation, rounds: int, share: bool
) -> tuple[float, list[Any]]:
    """Seconds of the processor, and all figures."""
    tracing.forget()
    if share:  # one that is there before
        _figures(experiment, configs[-1], data, rounds)
    seconds, figures = 0.0, []
    for config in configs[:-1]:
        if not share:
            tracing.forget()
        began = time.process_time()
        figures.append(_figures(experiment, config, data, rounds))
        seconds += time.process_time() - began
    return seconds, figures


def _figures(experiment: Experiment, config: dict[str, Any], data: Federation, rounds: int) -> list[dict[str, Any]]:
    simulation, rows = Simulation(experiment, config, data), []
    try:
        for _ in range(rounds):
            rows.append({n: v for n, v in simulation.step().items() if n not in CLOCK})
    except Diverged:
        pass
    return rows


def case(algorithm: str, name: str, rounds: int, trials: int, turns: int) -> dict[str, Any]:
    """One case: both ways in turns, checked to be the same."""
    scenario = scenarios.find(name)
    experiment = Experiment(algorithm=algorithm, scenario=scenario, executor="stack", test_every=rounds)
    data, configs = partitioning.make(scenario, 0), drawn(experiment, trials + 1)
    trained(experiment, configs[:2], data, 2, share=False)  # a process's first rounds take longer
    seconds = [0.0, 0.0]
    for _ in range(turns):
        alone, shared = (trained(experiment, configs, data, rounds, share) for share in (False, True))
        assert alone[1] == shared[1], algorithm
        seconds = [seconds[0] + alone[0], seconds[1] + shared[0]]
    each = [1e3 * t / (trials * turns) for t in seconds]
    return {
        "algorithm": algorithm,
        "setting": name,
        "rounds": rounds,
        "trials": trials,
        "alone_ms": each[0],
        "shared_ms": each[1],
        "ratio": each[0] / each[1],
    }


def main() -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    rows = []
    print(f"{'algorithm':10} {'setting':16} {'rounds':>6} {'alone ms':>9} {'shared ms':>9} {'ratio':>6}", flush=True)
    for algorithm, scenario, rounds in CASES:
        rows.append(row := case(algorithm, scenario, rounds, args.trials, args.turns))
        times = f"{row['alone_ms']:9.1f} {row['shared_ms']:9.1f} {row['ratio']:6.2f}"
        print(f"{algorithm:10} {scenario:16} {rounds:6d} {times}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
