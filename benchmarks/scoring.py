"""The share of evaluation in the CPU time of a run, case by case.

    python -m benchmarks.scoring [--test-every 1,10] [--only shards,w4-5,…] [--turns 3] [--all-classes 200]
                                 [--json FILE]

A row is a run of its case: all rounds on the digits, some rounds elsewhere, without the first ones, which fill
caches.  It shows CPU seconds of one thread per round, for training and exchange and for evaluation, and the share of
evaluation.  The schedules of --test-every take turns, and the median turn of each is shown.  The share of the default
schedule should be at most TARGET.  --all-classes: rows of all classes on which every client is tested, in place of the
scenario's (1,000 if there are enough).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedtune.core import memory
from fedtune.engine import evaluation
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenarios import find

TARGET = 0.15
WARM = 2  # rounds that are not counted

# name -> algorithm, scenario, its fields that differ, rounds that are counted
CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "shards": ("gfpl", "digits-shards", {}, 38),  # a trial of the default search
    "digits": ("gfpl", "digits-w4", {}, 58),
    "w4-100": ("gfpl", "gfpl-fmnist-w4", {}, 10),
    "w4-20": ("gfpl", "gfpl-fmnist-w4", {"shots": 20}, 10),
    "w4-5": ("gfpl", "gfpl-fmnist-w4", {"shots": 5}, 10),
    "w4-proto": ("fedproto", "gfpl-fmnist-w4", {}, 10),
    "fedpa": ("fedpa", "fedpa-fmnist-a0.3", {}, 10),
    "fedpa-avg": ("fedavg", "fedpa-fmnist-a0.3", {}, 10),
    "dir0.1": ("fedavg", "fmnist-dir0.1", {}, 10),
}


@contextmanager
def scoring_timed(spent: list[float]) -> Iterator[None]:
    """While this lasts, the CPU seconds of every scoring are appended."""
    plain = evaluation.score_all

    def timed(*args: Any, **options: Any) -> Any:
        began = time.process_time()
        scores = plain(*args, **options)
        spent.append(time.process_time() - began)
        return scores

    evaluation.score_all = timed
    try:
        yield
    finally:
        evaluation.score_all = plain


def share(simulation: Simulation, rounds: int) -> dict[str, float]:
    """CPU seconds a round of training and of scoring, over the next rounds of a simulation, and the latter's share."""
    spent: list[float] = []
    for _ in range(WARM):
        simulation.step()
    began = time.process_time()
    with scoring_timed(spent):
        for _ in range(rounds):
            simulation.step()
    seconds, scoring = time.process_time() - began, sum(spent)
    return {"training": (seconds - scoring) / rounds, "scoring": scoring / rounds, "share": scoring / seconds}


def row(
    name: str, schedules: list[int], turns: int, all_classes: int | None, data_dir: str | None
) -> list[dict[str, Any]]:
    """One case under every schedule: the turn with the median share."""
    algorithm, scenario, changed, rounds = CASES[name]
    built = find(scenario).override(**changed, **({} if all_classes is None else {"all_classes": all_classes}))
    data = partitioning.make(built, 0, data_dir)
    turns_of: dict[int, list[dict[str, float]]] = {every: [] for every in schedules}
    for _ in range(turns):
        for every, turn in turns_of.items():
            turn.append(
                share(Simulation(Experiment(algorithm=algorithm, scenario=built, test_every=every), {}, data), rounds)
            )
    out = []
    for every, turn in turns_of.items():
        middle = statistics.median_low(one["share"] for one in turn)
        out.append({"setting": name, "test_every": every} | next(one for one in turn if one["share"] == middle))
    return out


def main() -> int:
    """Measure the requested settings."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--test-every", default="1,10", help="schedules, with commas")
    parser.add_argument("--only", default=",".join(CASES), help="which settings, with commas")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--all-classes", type=int, help="rows of all classes (default: the scenario's)")
    parser.add_argument("--data-dir", help="torchvision's layout")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(CASES):
        parser.error(f"--only takes {', '.join(CASES)}, but got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    rows = []
    print(
        f"{'setting':10} {'test-every':>10} {'training ms':>12} {'scoring ms':>11} {'share':>7}   "
        f"(a round; target: at most {TARGET:.0%} by default)",
        flush=True,
    )
    for name in args.only.split(","):
        schedules = [int(n) for n in args.test_every.split(",")]
        for one in row(name, schedules, args.turns, args.all_classes, args.data_dir):
            rows.append(one)
            print(
                f"{name:10} {one['test_every']:10} {1e3 * one['training']:12.1f} {1e3 * one['scoring']:11.1f} "
                f"{one['share']:7.1%}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
