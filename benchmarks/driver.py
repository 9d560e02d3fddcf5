"""What fedtune adds to Ray Tune: a search of 200 trials that do nothing, against Tune alone with the same settings.

    python -m benchmarks.driver [--trials N] [--rounds N] [--repeats N]

Both have Optuna's TPE over the same space, ASHA, reused actors, two trials at once and Tune's JSON logs.  fedtune adds
its progress, metrics, log of suggestions and check of the disk, and what it reports to Optuna.  A trial reports
`rounds` rows with as many metrics as FedAvg's.  Reported are trials and results a second from first start to last end,
without Ray's own start, and how much memory a search adds to a driver, per 1,000 trials (each in a process of its own).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search.optuna import OptunaSearch

from fedtune.cluster import ray_start
from fedtune.core.metrics import METRICS
from fedtune.runs import disk
from fedtune.tuning import driver, plan
from fedtune.tuning.options.search import SearchOptions


class Idle(tune.Trainable):
    """Reports rows without training anything."""

    def setup(self, config: dict[str, Any], rounds: int) -> None:
        self.rounds, self.at = rounds, config["lr"]

    def step(self) -> dict[str, Any]:
        t, over = self.iteration + 1, self.iteration + 1 >= self.rounds
        value = 1 - math.exp(-t * (1 + abs(math.log(self.at)))) / 2
        return dict.fromkeys(METRICS, 1.0) | {
            "round": t,
            "val_acc": value,
            "comm_mb": float(t),
            "done": over,
            "complete": over,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "state").write_text("")

    def load_checkpoint(self, checkpoint: Any) -> None:
        pass

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.at = new_config["lr"]
        return True


def planned(folder: str, trials: int, rounds: int) -> plan.SearchPlan:
    options = SearchOptions(
        algo="fedavg",
        fields={"rounds": rounds},
        trials=trials,
        grace=1,
        max_concurrent=2,
        name="search",
        storage_path=folder,
    )
    return plan.make(options)


def with_fedtune(p: plan.SearchPlan, trainable: Any) -> int:
    p.folder.mkdir(parents=True)
    p.files.write("running")
    watch = disk.DiskWatch(p.folder)
    sys.stderr = open(os.devnull, "w")  # the line of each trial
    _, reported = driver.fit(
        plan.StartedSearch(plan=p, workload=p.workload, prepared=[], concurrent=2), watch=watch, trainable=trainable
    )
    return sum(map(len, reported.values()))


def with_tune(p: plan.SearchPlan, trainable: Any) -> int:
    import optuna

    limit: Any = p.workload.scenario.rounds
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(
                dict(p.space.domains), metric="val_acc", mode="max", sampler=optuna.samplers.TPESampler(seed=0)
            ),
            scheduler=AsyncHyperBandScheduler(metric="val_acc", mode="max", max_t=limit, reduction_factor=3),
            num_samples=p.trials,
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="plain",
            storage_path=str(p.storage),
            callbacks=[JsonLoggerCallback()],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=3),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    )
    grid = tuner.fit()
    return sum((grid[i].metrics or {}).get("training_iteration", 0) for i in range(len(grid)))


def resident() -> float:
    """Megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def once(which: str, trials: int, rounds: int) -> dict[str, float]:
    """One search in this process: its figures."""
    with tempfile.TemporaryDirectory() as folder:
        p = planned(folder, trials, rounds)
        with ray_start.connected(None, 1, 0, dashboard=False):
            bundle = tune.PlacementGroupFactory([{"CPU": 1}])
            trainable = tune.with_resources(tune.with_parameters(Idle, rounds=rounds), bundle)
            before, began = resident(), time.perf_counter()
            count = (with_fedtune if which == "fedtune" else with_tune)(p, trainable)
            seconds = time.perf_counter() - began
        grown = (resident() - before) / trials * 1000
    return {"seconds": seconds, "trials": trials / seconds, "results": count / seconds, "grown": grown}


def measure(trials: int = 200, rounds: int = 9, repeats: int = 3) -> dict[str, dict[str, float]]:
    """The quickest of each, taking turns."""
    turns: dict[str, list[dict[str, float]]] = {"tune": [], "fedtune": []}
    for _ in range(repeats):
        for which, times in turns.items():
            command = [sys.executable, "-m", "benchmarks.driver", "--once", which, "--trials", str(trials)]
            out = subprocess.run([*command, "--rounds", str(rounds)], check=True, capture_output=True, text=True).stdout
            times.append(json.loads(out.splitlines()[-1]))
    return {which: min(times, key=lambda f: f["seconds"]) for which, times in turns.items()}


def line(figures: dict[str, dict[str, float]]) -> str:
    fedtune, plain = figures["fedtune"], figures["tune"]
    return (
        f"driver: {fedtune['trials']:.1f} trials and {fedtune['results']:.0f} results a second, "
        f"{fedtune['grown']:.0f} MB more per 1,000 trials; Tune alone {plain['trials']:.1f}, {plain['results']:.0f}, "
        f"{plain['grown']:.0f} MB; ratio of trials a second {fedtune['trials'] / plain['trials']:.2f} "
        "(target: at least 0.9)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--once", choices=("tune", "fedtune"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(once(args.once, args.trials, args.rounds)))
    else:
        print(line(measure(args.trials, args.rounds, args.repeats)))


if __name__ == "__main__":
    main()
