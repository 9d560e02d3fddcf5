"""What a round costs with an algorithm and a model from a user's files, against the same ones built in.

    python -m benchmarks.user_files [--json FILE] [--rounds 122]

The files are copies of built-in code: an algorithm's file, and a network's function.  All runs of a case have the same
seed and are checked to give the same figures.  Their rounds take turns and CPU time is measured, so that other work on
the machine affects all alike.  A ratio is the built-in's time for a round divided by that of the user's file, the
median of all rounds: 1 means no cost.  The control, a second run of the built-in, shows what chance does to a ratio.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fedtune.core import memory
from fedtune.core.about import FOLDER
from fedtune.data.federation import Federation
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.user_code import user_files

TARGET = 0.97
# algorithm, model, executor
CASES = [
    ("fedprox", "cnn8", "stack"),
    ("fedprox", "cnn8", "loop"),
    ("fedproto", "mlp", "stack"),
    ("gfpl", "cnn8", "stack"),
]
ORDERS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0), (1, 0, 2), (0, 2, 1))  # of built-in, own, built-in again
CLOCK = ("seconds", "eval_seconds")


def own_algorithm(name: str, folder: Path) -> str:
    """The canonical name of a copy of our algorithm's file."""
    copy = folder / f"{name}.py"
    copy.write_text((FOLDER / "trainables" / f"{name}.py").read_text())
    return user_files.take(str(copy))[0]


def own_model(name: str, folder: Path) -> str:
    """The canonical name of a copy of our network, as a user would write it."""
    helpers = (architectures.BODIES[name], architectures._numel, architectures._out, architectures._with_features)
    code = "\n\n".join(inspect.getsource(f) for f in helpers)
    width = architectures.catalogue.WIDTHS[name]
    (folder / "net.py").write_text(
        "from __future__ import annotations\n\nimport torch\nfrom torch import nn\n\n"
        "from fedtune.nn.layers import Linear, MaxPool2x2\nfrom fedtune.nn.net import Net\n\n\n"
        f"{code}\n\ndef net(shape, classes):\n"
        f"    return Net({name.replace('-', '_')}(shape, {width}), Linear({width}, classes))\n"
    )
    return user_files.take(f"{folder / 'net.py'}:net")[0]


def case(
    algorithm: str, model: str, executor: str, rounds: int, data: Federation, scenario: Scenario
) -> dict[str, Any]:
    """One case: rounds of both in turns, checked to be the same."""
    with tempfile.TemporaryDirectory() as folder:
        names = ((algorithm, model), (own_algorithm(algorithm, Path(folder)), own_model(model, Path(folder))))
        runs = [
            Simulation(Experiment(algorithm=a, scenario=scenario.override(model=m), executor=executor), {}, data)
            for a, m in (names[0], names[1], names[0])
        ]
        times: list[list[float]] = []
        for t in range(rounds):
            seconds, rows = [0.0] * 3, [{}] * 3
            for i in ORDERS[t % len(ORDERS)]:
                began = time.process_time()
                row = runs[i].step()
                seconds[i] = time.process_time() - began
                rows[i] = {k: v for k, v in row.items() if k not in CLOCK}
            assert rows[0] == rows[1] == rows[2], (algorithm, model, t)
            times.append(seconds)
    built_in, user, control = zip(*times[2:], strict=True)  # the first rounds fill caches
    return {
        "algorithm": algorithm,
        "model": model,
        "executor": executor,
        "rounds": rounds,
        "built_in_ms": 1e3 * statistics.median(built_in),
        "user_ms": 1e3 * statistics.median(user),
        "ratio": statistics.median(a / b for a, b in zip(built_in, user, strict=True)),
        "control": statistics.median(a / b for a, b in zip(built_in, control, strict=True)),
        "target": TARGET,
    }


def measure(rounds: int) -> list[dict[str, Any]]:
    """All cases, printed as they are found."""
    scenario, rows = Scenario(), []
    data = partitioning.make(scenario, 0)
    head = f"{'algorithm':10} {'model':6} {'executor':>8} {'built-in ms':>11} {'user ms':>8}"
    print(f"{head} {'ratio':>6} {'control':>7} {'target':>6}", flush=True)
    for algorithm, model, executor in CASES:
        row = case(algorithm, model, executor, rounds, data, scenario)
        rows.append(row)
        print(
            f"{algorithm:10} {model:6} {executor:>8} {row['built_in_ms']:11.2f} {row['user_ms']:8.2f} "
            f"{row['ratio']:6.3f} {row['control']:7.3f} {TARGET:6.2f}{'' if row['ratio'] >= TARGET else '  below'}",
            flush=True,
        )
    return rows


def main() -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--rounds", type=int, default=122)
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    rows = measure(args.rounds)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
