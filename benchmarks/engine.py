"""How much faster the engine is than plain PyTorch: one table, ratios within one run.

    python -m benchmarks.engine [--json FILE] [--repeats 5] [--device cuda]

A row shows the milliseconds a client-step of fedtune's local training, against a plain eager loop over the clients
(nn.Module, torch.optim.SGD with momentum 0.5) on the same models and batches.  Both are checked to end with the same
weights.  One thread, both in this process, taking turns; the least of several repeats.  On a GPU the difference of the
weights is printed, because convolutions round to TF32.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import best_of
from fedtune.core import memory, randomness
from fedtune.engine import batches, executors, local_training
from fedtune.experiment.algorithm import Phase
from fedtune.experiment.registry import find
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures, catalogue

# model, image, batch, clients, rows of a client, target: the least ratio
CASES: list[tuple[str, architectures.Shape, int, int, int, float]] = [
    ("cnn8", (1, 8, 8), 4, 20, 100, 7.0),
    ("cnn8", (1, 8, 8), 32, 20, 640, 1.0),
    ("fedproto-cnn", (1, 28, 28), 4, 20, 100, 3.5),
    ("fedproto-cnn", (1, 28, 28), 10, 20, 200, 1.5),
    ("fedproto-cnn", (1, 28, 28), 32, 20, 320, 1.15),
    ("fedproto-cnn", (1, 28, 28), 128, 20, 640, 1.0),
    ("fedgen-cnn", (1, 28, 28), 32, 20, 320, 1.8),
    ("mlp", (1, 28, 28), 4, 20, 100, 2.5),
    ("mlp", (1, 28, 28), 128, 20, 1280, 1.0),
    ("mcmahan-cnn", (1, 28, 28), 10, 20, 50, 1.0),
    ("resnet8-bn", (3, 32, 32), 4, 10, 16, 1.0),
    ("resnet8-bn", (3, 32, 32), 10, 10, 40, 1.0),
    ("resnet8-gn", (3, 32, 32), 4, 10, 16, 1.0),
    ("resnet8-gn", (3, 32, 32), 10, 10, 40, 1.0),
    ("vit", (3, 32, 32), 4, 10, 16, 1.0),
    ("vit", (3, 32, 32), 10, 10, 40, 1.0),
    ("textcnn", (30,), 4, 20, 20, 1.0),
    ("textcnn", (30,), 10, 20, 50, 1.0),
    ("cnn1d", (9, 128), 4, 20, 20, 1.0),
    ("cnn1d", (9, 128), 10, 20, 50, 1.0),
    ("lstm", (30,), 10, 10, 40, 0.95),  # a loop against a loop, as the next
    ("resnet18", (3, 32, 32), 8, 4, 24, 0.95),
]


def training_row(
    name: str, shape: architectures.Shape, batch: int, clients: int, rows: int, repeats: int, device: str = "cpu"
) -> dict[str, Any]:
    """One case: both ways checked to do the same work, then timed."""
    work = Scenario(batch=batch, momentum=0.5, lr=0.01)
    net = architectures.build(name, shape, 10)
    executor = executors.choose("auto", net, device)
    seed = torch.Generator().manual_seed(0)
    if catalogue.called(name)[0] in catalogue.OF_TOKENS:
        x = torch.randint(4096, (clients * rows, *shape), generator=seed).to(device)
    else:
        x = torch.randn(clients * rows, *shape, generator=seed).to(device)
    y = torch.randint(10, (clients * rows,), generator=seed).to(device)
    numbers = torch.arange(clients * rows, device=device).view(clients, rows)
    pool = batches.Pool(x, y, numbers, torch.full((clients,), rows, device=device))
    tensors = {n: t.to(device).expand(clients, *t.shape) for n, t in net.state_dict().items()}
    phase = Phase(find("local")().loss)

    def streams() -> list[torch.Generator]:
        return [randomness.stream(0, k) for k in range(clients)]

    def engine() -> dict[str, Tensor]:
        return local_training.train(net, tensors, {}, phase, pool, work, executor, streams()).tensors

    def eager() -> list[nn.Module]:
        drawn = batches.plan([pool], phase, work, 1, streams()).rows
        nets = []
        for k in range(clients):
            own = copy.deepcopy(net).to(device).train()
            optimizer = torch.optim.SGD(own.parameters(), lr=work.lr, momentum=work.momentum)
            for index in drawn[k]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(own(x[index]), y[index]).backward()
                optimizer.step()
            nets.append(own)
        return nets

    stacked, looped = engine(), eager()
    plain = {n: torch.stack([m.get_parameter(n).detach() for m in looped]) for n, _ in net.named_parameters()}
    difference = max((stacked[n] - t).abs().max().item() for n, t in plain.items())
    assert difference < 2e-3 or device != "cpu", difference  # the same work, in float32
    fast, slow = best_of([engine, eager], repeats, device)
    steps = clients * -(-rows // batch)
    return {
        "model": name,
        "batch": batch,
        "clients": clients,
        "executor": executor,
        "parameters": sum(p.numel() for p in net.parameters()),
        "engine_ms": fast / steps * 1e3,
        "eager_ms": slow / steps * 1e3,
        "ratio": slow / fast,
        "steps_per_second": steps / fast,
        "difference": difference,
    }


def measure(repeats: int, device: str = "cpu") -> list[dict[str, Any]]:
    """Every case, printed as it is found."""
    head = f"{'model':14} {'B':>4} {'executor':>8} {'eager ms':>9} {'engine ms':>9} {'ratio':>6} {'target':>6} "
    head += f"{'difference':>10}"
    print(head + "   (a client-step)", flush=True)
    rows = []
    for *case, target in CASES:
        row = training_row(*case, repeats, device) | {"target": target if device == "cpu" else 0.0}
        rows.append(row)
        print(
            f"{row['model']:14} {row['batch']:4} {row['executor']:>8} {row['eager_ms']:9.3f} "
            f"{row['engine_ms']:9.3f} {row['ratio']:6.2f} {row['target']:6.2f} {row['difference']:10.1e}"
            f"{'' if row['ratio'] >= row['target'] else '  below'}",
            flush=True,
        )
    return rows


def main() -> int:
    """Measure, print, and write the figures."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    rows = measure(args.repeats, args.device)
    if args.json:
        args.json.write_text(json.dumps({"training": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
