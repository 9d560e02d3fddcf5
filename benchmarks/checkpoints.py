"""The share of a trial's time that goes into its checkpoints.

    python -m benchmarks.checkpoints

One trial of each case runs through Tune as in a search, on one CPU and with checkpoints brought to the study's folder.
Reported is the time spent in `save` over the trial's whole time; that of the file's way to the folder is in it,
that of the driver, which notes the checkpoint and removes the one before, is not, nor is the one after the last round.
"""

import argparse
import tempfile
from typing import Any

from fedtune.cluster import ray_start
from fedtune.commands import search
from fedtune.data import datasets
from fedtune.experiment import partitioning
from fedtune.tuning import driver, plan
from fedtune.tuning.options.arguments import given
from fedtune.tuning.options.search import SearchOptions
from fedtune.tuning.trainable import FederatedTrainable

# name -> arguments of a search, and the configuration that is trained
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedProto on digits": ("--algo fedproto --rounds 100", {"lam": 1.0}),
    "GFPL on digits": ("--algo gfpl --rounds 60", {"lam": 2.0}),
    "FedAvg, two-conv CNN on Fashion-MNIST, 20 clients": (
        "--algo fedavg --dataset fashion-mnist --model mcmahan-cnn --clients 20 --rounds 20",
        {"lr": 0.01},
    ),
}


class Timed(FederatedTrainable):
    """Reports the time of its checkpoints."""

    def save(self, *args: Any, **options: Any) -> Any:
        saved = super().save(*args, **options)
        self.spent = getattr(self, "spent", 0.0) + self._cost
        self.saves = getattr(self, "saves", 0) + 1
        return saved

    def step(self) -> dict[str, Any]:
        return super().step() | {"spent": getattr(self, "spent", 0.0), "saves": getattr(self, "saves", 0)}


def measure(arguments: str, config: dict[str, Any]) -> dict[str, float]:
    """Seconds of the trial, seconds in its checkpoints, and how many it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/space.py", "w") as file:
            file.write(f"SPACE = [{config!r}]\n")
        words = [
            *arguments.split(),
            "--space",
            f"{folder}/space.py",
            "--scheduler",
            "none",
            "--trials",
            "1",
            "--storage-path",
            folder,
            "--name",
            "run",
        ]
        p = plan.make(SearchOptions(**given(search.parser().parse_args(words), SearchOptions)))
        data = datasets.load(p.workload.scenario.dataset, p.options.data_dir)
        driver.FederatedTrainable = Timed
        with ray_start.connected(None, 1, p.gpus, dashboard=False):
            _, reported = driver.fit(
                plan.StartedSearch(
                    plan=p,
                    workload=p.workload,
                    prepared=[partitioning.partition(data, p.workload.scenario, 0)],
                    concurrent=1,
                )
            )
    [rows] = reported.values()
    end = rows[-1]
    return {"seconds": end["time_total_s"] + end["spent"], "spent": end["spent"], "saves": end["saves"]}


def line(name: str, figures: dict[str, float]) -> str:
    return (
        f"{name}: {figures['saves']} checkpoints took {figures['spent']:.2f} of {figures['seconds']:.1f} s, "
        f"{figures['spent'] / figures['seconds']:.1%} (target: below 3 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    for name, (arguments, config) in CASES.items():
        print(line(name, measure(arguments, config)), flush=True)


if __name__ == "__main__":
    main()
