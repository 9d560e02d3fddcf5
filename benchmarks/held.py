"""What a driver holds for every trial, and who holds it: fedtune, Ray, Optuna or what else.

    python -m benchmarks.held [--trials 200] [--slots 10] [--searcher random]

The search is that of benchmarks.scale.  Python notes where all that it holds was allocated; of what was added between a
quarter of the trials and all of them each byte counts for the innermost of these libraries at the place.
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

WHOSE = ("fedtune", "ray", "optuna", "pandas", "rich")
DEEP = 12  # calls that are noted of an allocation


def whose(trace: tracemalloc.Traceback) -> str:
    """The library that asked for the memory."""
    for frame in reversed(trace):
        for name in WHOSE:
            if f"/{name}/" in frame.filename:
                return name
    return "others"


class Held(scale.Blocks):
    """Compares what is held at the first block's end and at the last one's."""

    first: tracemalloc.Snapshot
    total = 0

    def __init__(self, every: int, slots: int) -> None:
        """As scale's."""
        super().__init__(every, slots)
        tracemalloc.start(DEEP)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Compare at the first block's end, and before the last trials end together."""
        super().on_trial_complete(iteration, trials, trial, **info)
        if self.ended in (self.every, self.total):
            gc.collect()
            now = tracemalloc.take_snapshot()
            if self.ended == self.every:
                self.first = now
            else:
                told(self.first, now, self.ended - self.every)


def told(first: tracemalloc.Snapshot, last: tracemalloc.Snapshot, trials: int) -> None:
    """Print who holds how much more for a thousand trials, and the places that hold most of ours."""
    by, places = Counter[str](), Counter[str]()
    for grown in last.compare_to(first, "traceback"):
        name = whose(grown.traceback)
        by[name] += grown.size_diff
        if name == "fedtune":
            frame = next(f for f in reversed(grown.traceback) if "/fedtune/" in f.filename)
            places[f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"] += grown.size_diff
    for name, size in by.most_common():
        print(f"{name:8} {size / trials / 1e3:7.1f} MB more per 1,000 trials")
    for place, size in places.most_common(5):
        print(f"   {place:30} {size / trials / 1e3:7.2f}")


def main() -> int:
    """Run the search with every allocation noted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--searcher", default="random")
    args = parser.parse_args()
    Held.total = args.trials - args.slots  # before the last ones end together
    words = ["--trials", str(args.trials), "--slots", str(args.slots), "--searcher", args.searcher]
    words += ["--every", str(args.trials // 4)]
    with mock.patch.object(scale, "Blocks", Held), mock.patch.object(sys, "argv", ["benchmarks.scale", *words]):
        return scale.main()


if __name__ == "__main__":
    sys.exit(main())
