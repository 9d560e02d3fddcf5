"""Where one driver becomes the limit: 10,000 trials on 1,000 slots, with trials that take time only on a clock.

    python -m benchmarks.scale [--trials 10000] [--slots 1000] [--rounds 27] [--seconds 10] [--searcher tpe]
                               [--every N] [-o FILE.csv]

The driver of the search is the real one: Ray Tune's controller, fedtune's searcher, ASHA, every callback, all files.
Only the actors are simulated, and their checkpoints are empty.  A round ends `--seconds` after it began on a simulated
clock, to which the driver's CPU seconds are added: while it handles one result, other slots wait.  So no machine with a
thousand slots is needed, and a busy machine measures as well as a quiet one.

The table shows for every block of trials the driver's milliseconds per trial and per result, its memory, and the share
of time that slots waited.  The last line says how long rounds must be for one driver to serve so many slots.  -o writes
the blocks.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.air.execution._internal.tracked_actor import TrackedActor
from ray.tune import Callback
from ray.tune.execution import tune_controller

from benchmarks.driver import resident
from fedtune.cluster import ray_internals, ray_start
from fedtune.core.metrics import METRICS
from fedtune.runs import disk
from fedtune.tuning import driver, plan
from fedtune.tuning.options.search import SearchOptions

ROUNDS = {"n": 0, "seconds": 0.0}  # of a trial, and of a round


class Clock:
    """The simulated time, and what was lost on it."""

    def __init__(self) -> None:
        self.now, self.waited, self.results, self._mark = 0.0, 0.0, 0, time.process_time()

    def worked(self) -> float:
        """Add the driver's CPU seconds since the last time; the time it is now."""
        cpu = time.process_time()
        self.now, self._mark = self.now + cpu - self._mark, cpu
        return self.now


CLOCK = Clock()


class Actors(RayActorManager):
    """Actors that only exist as events on the clock."""

    def __init__(self, resource_manager: Any) -> None:
        super().__init__(resource_manager)
        self._events: list[tuple[float, int, bool, TrackedActor, int, Callable[[], Any]]] = []
        self._count = 0
        self._age: dict[TrackedActor, int] = {}  # earlier requests to an actor are void
        self._work: dict[TrackedActor, tuple[dict[str, Any], int]] = {}  # its configuration, and rounds until now

    def _at(self, actor: TrackedActor, after: float, what: Callable[[], Any], trains: bool = False) -> None:
        self._count += 1
        entry = (CLOCK.worked() + after, self._count, trains, actor, self._age[actor], what)
        heapq.heappush(self._events, entry)

    def next(self, timeout: float | None = None) -> bool:
        """Process the next event; False if there is none."""
        while self._events:
            due, _, trains, actor, age, what = heapq.heappop(self._events)
            if self._age.get(actor) != age:
                continue
            waited = CLOCK.worked() - due
            CLOCK.now = max(CLOCK.now, due)
            CLOCK.waited += max(0.0, waited) * trains
            CLOCK.results += trains
            what()
            return True
        return False

    def add_actor(
        self,
        cls: Any,
        kwargs: dict[str, Any],
        resource_request: Any,
        *,
        on_start: Any = None,
        on_stop: Any = None,
        on_error: Any = None,
    ) -> TrackedActor:
        actor = TrackedActor(self._count, on_start=on_start, on_stop=on_stop, on_error=on_error)
        self._age[actor], self._work[actor] = 0, (kwargs["config"], 0)
        self._pending_actors_to_attrs[actor] = ()

        def start() -> None:
            self._pending_actors_to_attrs.pop(actor)
            metrics = SimpleNamespace(remote=lambda **_: None)
            self._live_actors_to_ray_actors_resources[actor] = (SimpleNamespace(get_auto_filled_metrics=metrics), None)
            actor._on_start(actor)

        self._at(actor, 0, start)
        return actor

    def remove_actor(self, tracked_actor: TrackedActor, kill: bool = False, stop_future: Any = None) -> bool:
        self._age[tracked_actor] += 1
        self._pending_actors_to_attrs.pop(tracked_actor, None)
        alive = self._live_actors_to_ray_actors_resources.pop(tracked_actor, None) is not None
        if alive and tracked_actor._on_stop:
            self._at(tracked_actor, 0, lambda: tracked_actor._on_stop(tracked_actor))
        return alive

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        args: Any = None,
        kwargs: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> Any:
        def trained() -> None:
            on_result(tracked_actor, self._round(tracked_actor))

        if method_name == "train":
            self._at(tracked_actor, ROUNDS["seconds"], trained, True)
        elif method_name == "reset":
            self._work[tracked_actor] = args[0], 0
            self._at(tracked_actor, 0, lambda: on_result(tracked_actor, True))
        elif method_name == "save":
            unsaved = ray_internals.unsaved(SimpleNamespace(_last_result={}))
            self._at(tracked_actor, 0, lambda: on_result(tracked_actor, unsaved))
        elif method_name != "stop":
            raise NotImplementedError(f"the simulated actor was asked to {method_name}")

    def _round(self, actor: TrackedActor) -> dict[str, Any]:
        """What a trainable of the same work reports, with what Tune adds to it."""
        config, before = self._work[actor]
        t = before + 1
        self._work[actor] = config, t
        value, over = 1 - math.exp(-t * (1 + abs(math.log(config["lr"])))) / 2, t >= ROUNDS["n"]
        row = {name: 1 / (t + i) for i, name in enumerate(METRICS)}
        return row | {
            "round": t,
            "val_acc": value,
            "comm_mb": float(t),
            "done": over,
            "complete": over,
            "timestamp": time.time(),
            "training_iteration": t,
            "time_total_s": t * ROUNDS["seconds"],
            "time_this_iter_s": ROUNDS["seconds"],
            "time_since_restore": t * ROUNDS["seconds"],
            "iterations_since_restore": t,
            "pid": 1,
            "node_ip": "127.0.0.1",
            "hostname": "simulated",
            "date": "2026-01-01_00-00-00",
            "config": dict(config),
        }

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        self._age[tracked_actor] += 1

    def get_live_actors_resources(self) -> dict[str, float]:
        return {"CPU": float(len(self._live_actors_to_ray_actors_resources))}

    def cleanup(self) -> None:
        self._events.clear()


class Blocks(Callback):
    """Says how the driver does, block by block."""

    def __init__(self, every: int, slots: int) -> None:
        self.every, self.slots, self.ended, self.rows = every, slots, 0, list[dict[str, float]]()
        self._last = self._state()

    def _state(self) -> dict[str, float]:
        return {"cpu": time.process_time(), "waited": CLOCK.waited, "clock": CLOCK.now, "results": CLOCK.results}

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self.ended += 1
        if self.ended % self.every:
            return
        now = self._state()
        passed = {name: now[name] - self._last[name] for name in now}
        self._last = now
        row = {
            "trials": self.ended,
            "ms a trial": passed["cpu"] / self.every * 1e3,
            "ms a result": passed["cpu"] / max(1, passed["results"]) * 1e3,
            "MB": resident(),
            "lost": passed["waited"] / max(1e-9, passed["clock"] * self.slots),
        }
        self.rows.append(row)
        figures = f"{row['trials']:8.0f} {row['ms a trial']:11.1f} {row['ms a result']:12.2f} {row['MB']:7.0f}"
        print(f"{figures} {row['lost']:7.1%}", flush=True)


class Nothing(tune.Trainable):
    """A stand-in for the actors' class."""


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=27, help="of a trial that nobody stops (default 27)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round (default 10)")
    parser.add_argument("--searcher", default="tpe")
    parser.add_argument("--every", type=int, default=0, help="trials of a block (default: a tenth)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.csv", help="write the blocks")
    args = parser.parse_args()
    ROUNDS.update(n=args.rounds, seconds=args.seconds)
    every = args.every or max(1, args.trials // 10)
    with tempfile.TemporaryDirectory() as folder:
        p = plan.make(
            SearchOptions(
                algo="fedavg",
                fields={"rounds": args.rounds},
                trials=args.trials,
                grace=1,
                max_concurrent=args.slots,
                searcher=args.searcher,
                name="search",
                storage_path=folder,
            )
        )
        p.folder.mkdir(parents=True)
        p.files.write("running")
        with ray_start.connected(None, 1, 0, dashboard=False):
            vars(tune_controller)["RayActorManager"] = Actors
            bundle = tune.PlacementGroupFactory([{"CPU": 1}])
            blocks = Blocks(every, args.slots)
            print(f"{'trials':>8} {'ms a trial':>11} {'ms a result':>12} {'MB':>7} {'lost':>7}")
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # the line of each trial
                trainable, watch = tune.with_resources(Nothing, bundle), disk.DiskWatch(p.folder)
                driver.fit(
                    plan.StartedSearch(plan=p, workload=p.workload, prepared=[], concurrent=args.slots),
                    watch=watch,
                    also=[blocks],
                    trainable=trainable,
                )
    first, last = blocks.rows[0], blocks.rows[-1]
    grown = (last["MB"] - first["MB"]) / max(1, last["trials"] - first["trials"]) * 1e3
    cost = statistics.median(row["ms a result"] for row in blocks.rows) / 1e3
    print(
        f"{1e3 / last['ms a trial']:.1f} trials a second at the end, {1e3 / first['ms a trial']:.1f} at first; "
        f"{grown:.0f} MB more per 1,000 trials; {args.slots} slots need rounds of at least {args.slots * cost:.1f} s"
    )
    if args.output:
        pd.DataFrame(blocks.rows).drop(columns="lost").to_csv(args.output, index=False, float_format="%.2f")
    return 0


if __name__ == "__main__":
    sys.exit(main())
