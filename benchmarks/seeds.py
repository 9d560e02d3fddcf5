"""How much faster the seeds of one configuration train as one stack: the same runs one by one and together.

    python -m benchmarks.seeds [--algos fedavg,fedproto,gfpl] [--scenario digits-w4] [--set lr=0.1] [--seeds 5]
                               [--candidates] [--rounds 3] [--turns 5] [--device cuda] [--json FILE]

Both ways run in this process on one thread and take turns of some rounds, evaluated as the commands do.  The table
shows medians of the CPU seconds (on a GPU: seconds) that a round of all seeds takes, and their ratio.  `difference` is
the largest difference between figures of the stack and of single runs, over all rounds, in float32
(tests/engine/test_seed_stack.py: in float64).

--candidates trains what `compare --choose-seeds 1` does on fresh seeds: all seeds of each algorithm's default and,
twice, of the configuration that analysis/results/compare-digits-w4.md found.  The ratio over all algorithms is shown,
too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import clock
from fedtune.core import memory
from fedtune.core.errors import Diverged
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment

CLOCK = ("seconds", "eval_seconds")
TUNED: dict[str, dict[str, Any]] = {
    "fedprox": {"local_epochs": 3, "lr": 0.0591, "momentum": 0.5726, "mu": 0.01568},
    "fedavg": {"local_epochs": 4, "lr": 0.0838, "momentum": 0.4689},
    "fedper": {"local_epochs": 5, "lr": 0.01213, "momentum": 0.8472},
    "fedrep": {"local_epochs": 2, "lr": 0.07143, "momentum": 0.4375, "head_epochs": 2},
    "fedproto": {"local_epochs": 5, "lr": 0.03981, "momentum": 0.4157, "lam": 1.391},
    "gfpl": {
        "local_epochs": 4, "lr": 0.02559, "momentum": 0.01785, "lam": 14.36, "components": 9, "threshold": 2.766,
        "pseudo": 9, "every": 5, "start": 11,
    },
    "local": {"local_epochs": 1, "lr": 0.108, "momentum": 0.1706},
}  # fmt: skip


def measure(experiment: Experiment, config: dict[str, Any], seeds: int, rounds: int, turns: int) -> dict[str, Any]:
    """Measure one configuration both ways; the first turn, which includes one-time work, does not count."""
    data = {seed: partitioning.make(experiment.scenario, seed) for seed in range(seeds)}
    alone = [Simulation(experiment.with_seed(seed), config, d) for seed, d in data.items()]
    together = Seeds(experiment, config, data)
    spent: dict[str, list[float]] = {"alone": [], "together": []}
    difference, now = 0.0, clock(experiment.device)
    for _ in range(turns + 1):
        began = now()
        one = [[run.step() for _ in range(rounds)] for run in alone]
        between = now()
        many = [list(together.steps().values()) for _ in range(rounds)]
        spent["alone"].append((between - began) / rounds)
        spent["together"].append((now() - between) / rounds)
        difference = max(
            [difference, *(_difference(one[i][t], many[t][i]) for i in range(seeds) for t in range(rounds))]
        )
    medians = {way: statistics.median(times[1:]) for way, times in spent.items()}
    return medians | {"ratio": medians["alone"] / medians["together"], "difference": difference}


def _difference(row: dict[str, Any], other: dict[str, Any] | Diverged) -> float:
    if isinstance(other, Diverged):
        raise other
    return max(abs(v - other[n]) for n, v in row.items() if n not in CLOCK and v is not None)


def main() -> int:
    """Measure what was requested."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algos", default="fedavg,fedproto,gfpl")
    parser.add_argument("--scenario", default="digits-w4")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--candidates", action="store_true", help="the default and what was found, as compare does")
    parser.add_argument("--rounds", type=int, default=3, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    given = {n: json.loads(v) for n, _, v in (pair.partition("=") for pair in args.set)}
    print(f"{'configuration':24} {'alone s':>8} {'stacked s':>9} {'ratio':>6} {'difference':>10}", flush=True)
    scenario, rows = scenarios.find(args.scenario), []
    for algo in list(TUNED) if args.candidates else args.algos.split(","):
        for config, times in ((given, 1), (TUNED.get(algo, {}) | given, 2))[: 1 + args.candidates]:
            case = Experiment(
                algorithm=algo, scenario=scenario, executor="rule", device=args.device, test_every=10
            )  # as the commands do
            row = {"algorithm": algo, "config": config, "times": times}
            row |= measure(case, config, args.seeds, args.rounds, args.turns)
            rows.append(row)
            name = f"{algo}{', tuned' if times > 1 else ''}"
            print(
                f"{name:24} {row['alone']:8.3f} {row['together']:9.3f} {row['ratio']:6.2f} {row['difference']:10.1e}",
                flush=True,
            )
    alone, together = (sum(row[way] * row["times"] for row in rows) for way in ("alone", "together"))
    print(f"{'all':24} {alone:8.3f} {together:9.3f} {alone / together:6.2f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
