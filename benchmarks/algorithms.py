"""What a round of each algorithm costs, beside FedAvg's in the same run: clients stacked, and one by one.

    python -m benchmarks.algorithms [--algos ditto,apfl,pfedme(inner_steps=1)] [--scenario digits-w4] [--set batch=10]
                                    [--rounds 3] [--turns 5]

Rounds are trained, not scored, on one thread; algorithms and executors take turns, and the least CPU time counts.
`ratio` is a stacked round of the algorithm over one of FedAvg; `stack` is a round one by one over a stacked one.
`work` is the multiply-adds of a round over those of FedAvg's, which follow from the mathematics: 2 for two models, K
for K gradient steps on every mini-batch (pFedMe).  PyTorch overstates them where every row has a gradient of its own
(FedAS, unless weighing=rows), because it counts a grouped convolution as a whole one.
NAME(hyperparameter=value) sets hyperparameters of one algorithm.  Clients of `perfedavg` take two or three mini-batches
a step, so that its round has fewer steps; `--set local_steps=50` gives all as many.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import best_of
from fedtune.core import memory
from fedtune.core.errors import Diverged
from fedtune.engine import engine
from fedtune.engine.seed_stack import SeedStack
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, registry, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario

WARM_UP = 4  # rounds before the first turn: steps are recorded in them


def parsed(words: str) -> dict[str, Any]:
    """NAME=VALUE pairs."""
    return dict(pair.split("=", 1) for pair in words.split(",") if pair)


def play(sim: Simulation, rounds: int) -> None:
    """Train some rounds."""
    for _ in range(rounds):
        (result,) = engine.run_rounds(SeedStack((sim.setup,)), {0: sim.state}).values()
        assert not isinstance(result, Diverged)
        sim.state, _ = result


def work(scenario: Scenario, name: str, config: dict[str, Any]) -> int:
    """Multiply-adds of a round of two clients, as PyTorch counts those of matrix products and convolutions."""
    two = scenario.override(clients=2)
    sim = Simulation(
        Experiment(algorithm=name, scenario=two, executor="loop", pinned=config), {}, partitioning.make(two, 0)
    )
    play(sim, 1)
    with FlopCounterMode(display=False) as counter:
        play(sim, 1)
    return counter.get_total_flops()


def measure(scenario: Scenario, algorithms: list[str], rounds: int, turns: int) -> list[list[float]]:
    """Seconds a round of each algorithm, stacked and one by one, and its multiply-adds."""
    data, runs, works = partitioning.make(scenario, 0), [], []
    for text in algorithms:
        name, values = re.fullmatch(r"(\w+)(?:\((.*)\))?", text).groups()  # type: ignore[union-attr]
        config = parsed((values or "").replace(" ", ""))
        works.append(work(scenario, name, config))
        for executor in ("stack", "loop"):
            runs.append(
                Simulation(Experiment(algorithm=name, scenario=scenario, executor=executor, pinned=config), {}, data)
            )
            play(runs[-1], WARM_UP)
    seconds = best_of([partial(play, sim, rounds) for sim in runs], turns)
    return [[*(s / rounds for s in seconds[2 * i : 2 * i + 2]), float(many)] for i, many in enumerate(works)]


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algos", default=",".join(n for n in registry.names() if n != "fedavg"))
    parser.add_argument("--scenario", default="digits-w4")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    scenario = scenarios.find(args.scenario)
    given = {n: json.loads(v) for n, v in parsed(",".join(args.set)).items()}
    algorithms = ["fedavg", *re.findall(r"\w+(?:\([^)]*\))?", args.algos)]
    times = measure(scenario.override(**given), algorithms, args.rounds, args.turns)
    print(f"{'algorithm':30} {'ms a round':>10} {'ratio':>6} {'work':>6} {'stack':>6}")
    for name, (stack, loop, many) in zip(algorithms, times, strict=True):
        ratios = stack / times[0][0], many / times[0][2], loop / stack
        print(f"{name:30} {stack * 1e3:10.1f}", *(f"{ratio:6.2f}" for ratio in ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
