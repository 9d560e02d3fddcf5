"""How much memory a driver needs for each trial, by library: fedtune, Ray, Optuna and others.

    python -m benchmarks.driver_memory [--trials 200] [--slots 10] [--searcher random]

The search is that of benchmarks.scale.  Python records where each block of memory was allocated.  Memory that was added
between a quarter of the trials and all of them is attributed to the innermost of these libraries in the call stack.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from collections import Counter
from typing import Any
from unittest import mock

from benchmarks import scale

LIBRARIES = ("fedtune", "ray", "optuna", "pandas", "rich")
DEPTH = 12  # recorded calls of an allocation


def library(trace: tracemalloc.Traceback) -> str:
    """The library that allocated the memory."""
    for frame in reversed(trace):
        for name in LIBRARIES:
            if f"/{name}/" in frame.filename:
                return name
    return "others"


class Memory(scale.Blocks):
    """Compares the memory at the end of the first block with that at the end of the last one."""

    first: tracemalloc.Snapshot
    total = 0

    def __init__(self, every: int, slots: int) -> None:
        """Take the arguments of `scale.Blocks`."""
        super().__init__(every, slots)
        tracemalloc.start(DEPTH)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Compare at the first block's end, and before the last trials end together."""
        super().on_trial_complete(iteration, trials, trial, **info)
        if self.ended in (self.every, self.total):
            gc.collect()
            now = tracemalloc.take_snapshot()
            if self.ended == self.every:
                self.first = now
            else:
                report(self.first, now, self.ended - self.every)


def report(first: tracemalloc.Snapshot, last: tracemalloc.Snapshot, trials: int) -> None:
    """Print how much memory each library adds for a thousand trials, and where fedtune adds most."""
    by, places = Counter[str](), Counter[str]()
    for grown in last.compare_to(first, "traceback"):
        name = library(grown.traceback)
        by[name] += grown.size_diff
        if name == "fedtune":
            frame = next(f for f in reversed(grown.traceback) if "/fedtune/" in f.filename)
            places[f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"] += grown.size_diff
    for name, size in by.most_common():
        print(f"{name:8} {size / trials / 1e3:7.1f} MB more per 1,000 trials")
    for place, size in places.most_common(5):
        print(f"   {place:30} {size / trials / 1e3:7.2f}")


def main() -> int:
    """Run the search with every allocation recorded."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--searcher", default="random")
    args = parser.parse_args()
    Memory.total = args.trials - args.slots  # before the last ones end together
    words = ["--trials", str(args.trials), "--slots", str(args.slots), "--searcher", args.searcher]
    words += ["--every", str(args.trials // 4)]
    with mock.patch.object(scale, "Blocks", Memory), mock.patch.object(sys, "argv", ["benchmarks.scale", *words]):
        return scale.main()


if __name__ == "__main__":
    sys.exit(main())
