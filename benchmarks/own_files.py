"""What a user's own algorithm and model from files cost a round, against the same ones built in.

    python -m benchmarks.own_files [--json FILE] [--rounds 40]

The files are copies of ours: an algorithm's file, and a network's function.  Both runs of a case have one seed and are
checked to give the same figures; their rounds take turns, so that a busy machine hits both alike.  A ratio is the
built-in's seconds for a round over the own one's, the median of all pairs: 1 says that it costs nothing.
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

from fedtune.core import memory, own_files, own_packages
from fedtune.data.federation import Federation
from fedtune.federated import partitioning
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario
from fedtune.federated.simulation import Simulation
from fedtune.nn import architectures

ASKED = 0.97
# algorithm, model, executor
CASES = [
    ("fedprox", "cnn8", "stack"),
    ("fedprox", "cnn8", "loop"),
    ("fedproto", "mlp", "stack"),
    ("gfpl", "cnn8", "stack"),
]
CLOCK = ("seconds", "eval_seconds")


def own_algorithm(name: str, folder: Path) -> str:
    """The canonical name of a copy of our algorithm's file."""
    copy = folder / f"{name}.py"
    copy.write_text((own_packages.folder("trainables") / f"{name}.py").read_text())
    return own_files.take(str(copy))[0]


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
    return own_files.take(f"{folder / 'net.py'}:net")[0]


def case(
    algorithm: str, model: str, executor: str, rounds: int, data: Federation, scenario: Scenario
) -> dict[str, Any]:
    """One case: rounds of both in turns, checked to be the same."""
    with tempfile.TemporaryDirectory() as folder:
        names = ((algorithm, model), (own_algorithm(algorithm, Path(folder)), own_model(model, Path(folder))))
        ours, own = (
            Simulation(Experiment(a, scenario.override(model=m), executor=executor), {}, data) for a, m in names
        )
        times: list[tuple[float, float]] = []
        for t in range(rounds):
            took = {}
            for sim in (ours, own) if t % 2 else (own, ours):
                began = time.perf_counter()
                row = sim.step()
                took[sim] = time.perf_counter() - began, {k: v for k, v in row.items() if k not in CLOCK}
            assert took[ours][1] == took[own][1], (algorithm, model, t)
            times.append((took[ours][0], took[own][0]))
    pairs = times[2:]  # the first rounds fill caches
    return {
        "algorithm": algorithm, "model": model, "executor": executor, "rounds": rounds,
        "built_in_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "own_ms": 1e3 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs), "asked": ASKED,
    }  # fmt: skip


def measure(rounds: int) -> list[dict[str, Any]]:
    """All cases, printed as they are found."""
    scenario, found = Scenario(), []
    data = partitioning.make(scenario, 0)
    print(f"{'algorithm':10} {'model':6} {'executor':>8} {'built-in ms':>11} {'own ms':>8} {'ratio':>6} {'asked':>6}")
    for algorithm, model, executor in CASES:
        row = case(algorithm, model, executor, rounds, data, scenario)
        found.append(row)
        print(
            f"{algorithm:10} {model:6} {executor:>8} {row['built_in_ms']:11.2f} {row['own_ms']:8.2f} "
            f"{row['ratio']:6.3f} {ASKED:6.2f}{'' if row['ratio'] >= ASKED else '  below'}",
            flush=True,
        )
    return found


def main() -> int:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    found = measure(args.rounds)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
