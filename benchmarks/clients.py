"""The cost of rounds with several architectures or few of many clients, of evaluation, and of partitioning.

    python -m benchmarks.clients [--json FILE] [--repeats 5]

Mixed     rounds per second of `local` with 20 clients of 100 rows, B = 10, without evaluation, against a plain loop
          over the clients (nn.Module, torch.optim.SGD) on the same batches; both are checked to end with the same
          weights.
Skewed    rows evaluated per second, of 20 clients with 200 to 4,000 rows each, in the engine's chunks of similar size,
          against one client at a time; both find the same accuracy.
Many      seconds of a round in which 10 of K clients take part, without evaluation, as a ratio to 10 of 10; and the
          memory that the process added for K clients (a fresh process each).  40 rows a client, B = 10, CNN for 8×8.
Assigned  CPU seconds to assign 300,000 rows to K clients by classes (`fedgen`) and 1,000,000 by their owners
          (`natural`), as a ratio to 100 clients: a pass over all rows for every client would give a hundred.
One thread, both sides taking turns, the least of several repeats.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.timing import best_of, status
from fedtune.core import memory, randomness
from fedtune.data import partitions
from fedtune.data.federation import Federation, Split
from fedtune.data.partitions import Partition
from fedtune.engine import chunks, engine, evaluation
from fedtune.engine.simulation import Simulation
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures

# data set that gives the image's shape, model, target: the least ratio
CASES = [
    ("digits", "htmini3", 1.5),
    ("digits", "cnn8", 1.5),
    ("fashion-mnist", "htmini3", 1.5),
    ("fashion-mnist", "fedproto-cnn", 1.5),
]
SKEWED = [
    ("fashion-mnist", "fedproto-cnn", 1.5),
    ("fashion-mnist", "fedgen-cnn", 0.9),
    ("digits", "cnn8", 0.9),
    ("fashion-mnist", "mlp", 0.9),
    ("fashion-mnist", "mcmahan-cnn", 0.9),
]
ALGORITHMS, COUNTS, MOST_MANY = ("fedavg", "fedproto"), (10, 100, 1_000, 10_000), 1.3
MOST_ASSIGNED = 5.0


def simulation(algorithm: str, dataset: str, model: str, clients: int, rows: int, active: int) -> Simulation:
    """A run on random rows; beyond ten, clients hold the rows of the first ten, so that their work is the same."""
    shape, rng = {"digits": (1, 8, 8), "fashion-mnist": (1, 28, 28)}[dataset], np.random.default_rng(0)
    held = min(clients, 20)
    x, y = rng.normal(size=(held * rows, *shape)).astype(np.float32), rng.integers(0, 10, held * rows)
    table = np.arange(held * rows).reshape(held, rows)[np.arange(clients) % held]
    split = Split(table, np.full(clients, rows))
    scenario = Scenario(
        dataset=dataset,
        model=model,
        clients=clients,
        participation=active / clients,
        batch=10,
        momentum=0.0,
        all_classes=0,
    )
    return Simulation(Experiment(algorithm=algorithm, scenario=scenario), {}, Federation(x, y, 10, split, split, split))


def mixed_row(dataset: str, model: str, repeats: int) -> dict[str, Any]:
    sim = simulation("local", dataset, model, 20, 100, 20)
    f, lr = sim.setup.federation, sim.setup.scenario.lr
    forms = [architectures.build(m, f.shape, 10, sim.setup.task.features) for m in sim.setup.task.models]
    start = {int(k): (g, i) for g in sim.state.groups for i, k in enumerate(g.ids)}

    def eager() -> list[dict[str, torch.Tensor]]:
        trained = []
        for k in range(20):
            net, (g, i) = forms[k % len(forms)], start[k]
            net.load_state_dict({n: t[i] for n, t in g.tensors.items()})
            net.train()
            optimizer = torch.optim.SGD(net.parameters(), lr=lr)
            order = torch.randperm(100, generator=randomness.stream(0, "train", 1, 0, k))
            for rows in f.train.rows[k, order].split(10):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(f.x[rows]), f.y[rows]).backward()
                optimizer.step()
            trained.append({n: t.clone() for n, t in net.state_dict().items()})
        return trained

    stacked, looped = engine.run_round(sim.setup, sim.state)[0], eager()
    for g in stacked.groups:
        for i, k in enumerate(g.ids.tolist()):
            for n, t in g.tensors.items():
                torch.testing.assert_close(t[i], looped[k][n], rtol=0, atol=1e-4)  # the same work, in float32
    fast, slow = best_of([lambda: engine.run_round(sim.setup, sim.state), eager], repeats)
    return {"data": dataset, "model": model, "per_second": 1 / fast, "eager": 1 / slow, "ratio": slow / fast}


def skewed_row(dataset: str, model: str, repeats: int) -> dict[str, Any]:
    sim = simulation("local", dataset, model, 20, 4000, 20)
    counts = torch.linspace(200, 4000, 20).long()
    split = Split(sim.setup.federation.val.rows, counts[torch.randperm(20, generator=randomness.stream(0))])
    setup = sim.setup._replace(federation=sim.setup.federation._replace(val=split))

    def scored(at_once: int) -> dict[str, float]:
        before, chunks.ROWS_AT_ONCE = chunks.ROWS_AT_ONCE, at_once
        try:
            return evaluation.evaluate(setup, sim.state, ("val",))
        finally:
            chunks.ROWS_AT_ONCE = before

    jobs = [lambda: scored(chunks.ROWS_AT_ONCE), lambda: scored(1)]
    if jobs[0]()["val_acc"] != jobs[1]()["val_acc"]:
        raise RuntimeError("chunks and single clients are scored differently")
    fast, slow = best_of(jobs, repeats)
    rows = int(counts.sum())
    return {"data": dataset, "model": model, "per_second": rows / fast, "alone": rows / slow, "ratio": slow / fast}


def many_here(algorithm: str, clients: int, repeats: int) -> dict[str, Any]:
    """The fastest round of 10 of K clients in this (fresh) process, and what K clients take of its memory."""
    torch.set_num_threads(1)
    warm = simulation(algorithm, "digits", "cnn8", 10, 40, 10)
    engine.run_round(warm.setup, warm.state)  # what is loaded and made once is no cost of a round
    before = status("VmRSS")
    sim, best = simulation(algorithm, "digits", "cnn8", clients, 40, 10), float("inf")
    for _ in range(10 * repeats):
        began = time.perf_counter()
        sim.state, _ = engine.run_round(sim.setup, sim.state)
        best = min(best, time.perf_counter() - began)
    return {"algorithm": algorithm, "clients": clients, "seconds": best, "added_mib": status("VmRSS") - before}


def many_row(algorithm: str, clients: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.clients", "--many", f"{algorithm},{clients}"]
    row: dict[str, Any] = json.loads(subprocess.check_output([*command, "--repeats", str(repeats)], text=True))
    return row


def assigned_rows(how: str, repeats: int) -> list[dict[str, Any]]:
    y, owner = np.tile(np.arange(10), 30_000), np.random.default_rng(0).integers(0, 200_000, 1_000_000)

    def assign(clients: int) -> Partition:
        rng = np.random.default_rng(1)
        if how == "fedgen":
            return partitions.fedgen(y, 200_000, 200_000, clients, 1.0, 1.0, 3, 0.15, rng)
        return partitions.natural(owner, clients, 10, 1.0, 0.1, 0.2, rng)

    counts = COUNTS[1:]
    seconds = best_of([partial(assign, clients) for clients in counts], repeats)
    return [
        {"partition": how, "clients": clients, "seconds": taken, "ratio": taken / seconds[0], "target": MOST_ASSIGNED}
        for clients, taken in zip(counts, seconds, strict=True)
    ]


def _rates(
    what: str,
    unit: str,
    other: str,
    cases: list[tuple[str, str, float]],
    row_of: Callable[[str, str, int], dict[str, Any]],
    repeats: int,
) -> list[dict[str, Any]]:
    print(f"{what:32} {unit:>10} {other:>10} {'ratio':>6} {'target':>6}", flush=True)
    rows = []
    for dataset, model, target in cases:
        row = row_of(dataset, model, repeats) | {"target": target}
        rows.append(row)
        print(
            f"{dataset + ', ' + model:32} {row['per_second']:10,.1f} {row[other]:10,.1f} {row['ratio']:6.2f} "
            f"{target:6.2f}{'' if row['ratio'] >= target else '  below'}",
            flush=True,
        )
    return rows


def measure(repeats: int) -> dict[str, Any]:
    """All parts, printed as they are found."""
    mixed = _rates("20 clients, B = 10", "rounds/s", "eager", CASES, mixed_row, repeats)
    skewed = _rates("scored, 200 to 4,000 rows each", "rows/s", "alone", SKEWED, skewed_row, repeats)
    head = f"{'10 clients of':>14} {'algorithm':>10} {'ms a round':>11} {'ratio':>6} {'target':>6} {'added MiB':>9}"
    print(head, flush=True)
    many = []
    for algorithm in ALGORITHMS:
        for clients in COUNTS:
            row = many_row(algorithm, clients, repeats)
            first = row["seconds"] if clients == COUNTS[0] else many[-1]["first"]
            row |= {"first": first, "ratio": row["seconds"] / first, "target": MOST_MANY}
            many.append(row)
            print(
                f"{clients:14} {algorithm:>10} {row['seconds'] * 1e3:11.1f} {row['ratio']:6.2f} {MOST_MANY:6.2f} "
                f"{row['added_mib']:9.0f}{'' if row['ratio'] <= MOST_MANY else '  above'}",
                flush=True,
            )
    print(f"{'assigned to':>14} {'partition':>10} {'ms':>11} {'ratio':>6} {'target':>6}", flush=True)
    assigned = assigned_rows("fedgen", repeats) + assigned_rows("natural", repeats)
    for row in assigned:
        print(
            f"{row['clients']:14} {row['partition']:>10} {row['seconds'] * 1e3:11.1f} {row['ratio']:6.2f} "
            f"{MOST_ASSIGNED:6.2f}"
            f"{'' if row['ratio'] <= MOST_ASSIGNED else '  above'}",
            flush=True,
        )
    return {"mixed": mixed, "skewed": skewed, "many": many, "assigned": assigned}


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--many", help=argparse.SUPPRESS)  # algorithm,K: one row of the third part, in this process
    args = parser.parse_args()
    if args.many:
        algorithm, clients = args.many.split(",")
        print(json.dumps(many_here(algorithm, int(clients), args.repeats)))
        return 0
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    got = measure(args.repeats)
    if args.json:
        args.json.write_text(json.dumps(got, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
