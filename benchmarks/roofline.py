"""What a stacked step and a round cannot cost less than: their kernels.

    python -m benchmarks.roofline [--only steps] [--repeats 20] [--clients 20] [--json FILE]
    python -m benchmarks.roofline --only rounds [--turns 6]

Steps: of every net and batch size milliseconds of a step of all clients as a plain eager loop over them (forward,
backward, SGD with momentum), as vmap and autograd run it stacked, as its tape runs it, and of its kernels alone: the
operations that compute something, without views, run by themselves on the tensors that they met, the least of several
runs of each, added up.  `bound` is the ratio to the loop that these kernels allow, `reached` the tape's.  CPU time of
one thread; what is said of the step leaves out reading the batch and the optimiser.

Rounds: those of `benchmarks.against`, with scoring, in turns with the same rounds seen by a dispatch mode that adds up
the time inside operations, PyTorch's own dispatch below the mode included.  What a round takes beyond is Python.
Medians over the turns after the first, as the first makes things once.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.against import CASES as ROUNDS
from fedtune.core import memory
from fedtune.engine.simulation import train
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenarios import find
from fedtune.nn import architectures
from fedtune.nn.layers import has_convolutions, stacked_layout
from fedtune.tracing.recording import OperationRecorder
from fedtune.tracing.tape import Tape

CASES = [
    (model, shape, batch)
    for model, shape in (("cnn8", (1, 8, 8)), *((m, (1, 28, 28)) for m in ("fedproto-cnn", "fedgen-cnn", "mlp")))
    for batch in (4, 32)
]


def fastest(job: Callable[[], object], repeats: int) -> float:
    """The least milliseconds of a job, in this thread."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        job()
        times.append(time.thread_time() - began)
    return min(times) * 1e3


def row(model: str, shape: architectures.Shape, batch: int, clients: int, repeats: int) -> dict[str, Any]:
    """One net and batch size."""
    net = architectures.build(model, shape, 10).train()
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(clients, batch, *shape, generator=rng)
    y = torch.randint(10, (clients, batch), generator=rng)
    x = stacked_layout(images) if has_convolutions(net) else images
    trained = [n for n, _ in net.named_parameters()]
    tensors = {n: t.expand(clients, *t.shape).clone() for n, t in net.state_dict().items()}
    tensors |= {n: tensors[n].requires_grad_() for n in trained}

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, own, (x,)), y)

    def stacked() -> list[Tensor | None]:
        for n in trained:
            tensors[n].grad = None
        losses = vmap(loss)(tensors, x, y)
        losses.sum().backward()
        return [losses, *(tensors[n].grad for n in trained)]

    nets = [copy.deepcopy(net) for _ in range(clients)]
    optimizers = [torch.optim.SGD(own.parameters(), lr=1e-6, momentum=0.5) for own in nets]

    def loop() -> None:
        for own, optimizer, images_, y_ in zip(nets, optimizers, images, y, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(images_), y_).backward()
            optimizer.step()

    fixed = [*tensors.values()]
    with (recorder := OperationRecorder([*fixed, x, y])):
        results = stacked()
    lines = [line for line in recorder.lines if any(_computes(recorder, line, s) for s in line.outs if s is not None)]
    calls = [(line.func, *recorder.filled((line.args, line.kwargs))) for line in lines]
    moving = [i for i, t in enumerate(fixed) if t.requires_grad]
    with torch.inference_mode():
        replay = Tape(recorder=recorder, fixed=len(fixed), fresh=2, moving=moving, results=results).bind(fixed)
        kernels = sum(fastest(lambda c=call: c[0](*c[1], **c[2]), repeats) for call in calls)
        tape = fastest(lambda: replay(x, y), repeats)
    eager, plain = fastest(stacked, repeats), fastest(loop, repeats)
    return {
        "model": model,
        "batch": batch,
        "clients": clients,
        "loop_ms": plain,
        "vmap_ms": eager,
        "tape_ms": tape,
        "kernels_ms": kernels,
        "bound": plain / kernels,
        "reached": plain / tape,
    }


def _computes(recorder: OperationRecorder, line: Any, slot: int) -> bool:
    """Whether a line does more than look at the memory of its operands."""
    memory = recorder.tensors[slot].untyped_storage().data_ptr()
    given = [t for t in recorder.filled((*line.args, *line.kwargs.values())) if isinstance(t, Tensor)]
    return bool(line.writes) or all(t.untyped_storage().data_ptr() != memory for t in given)


class Kernels(TorchDispatchMode):
    """Adds up the seconds that this thread spends inside operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        began = time.thread_time()
        result = func(*args, **(kwargs or {}))
        self.seconds += time.thread_time() - began
        return result


def rounds(case: str, turns: int) -> dict[str, Any]:
    """Milliseconds of a round, and of the operations in one."""
    algorithm, scenario, config = ROUNDS[case]
    experiment = Experiment(
        algorithm=algorithm, scenario=find(scenario).override(rounds=2 * turns), test_every=2 * turns
    )
    rows = train(experiment, config, data_dir=os.environ.get("FEDTUNE_DATA_DIR"))
    round_times, operation_times = [], []
    for _ in range(turns):
        began = time.thread_time()
        next(rows)
        round_times.append(time.thread_time() - began)
        with Kernels() as kernels:
            next(rows)
        operation_times.append(kernels.seconds)
    round_ms, kernels_ms = (1e3 * statistics.median(seconds[1:]) for seconds in (round_times, operation_times))
    return {"case": case, "round_ms": round_ms, "kernels_ms": kernels_ms, "share": kernels_ms / round_ms}


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", choices=("steps", "rounds"), default="steps")
    parser.add_argument("--turns", type=int, default=6, help="of rounds (default 6)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    rows = of_rounds(args.turns) if args.only == "rounds" else of_steps(args.clients, args.repeats)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def of_rounds(turns: int) -> list[dict[str, Any]]:
    """Measure and print the rounds."""
    print(f"{'case':10} {'round ms':>9} {'kernels':>8} {'share':>6}", flush=True)
    rows = []
    for case in ROUNDS:
        rows.append(figures := rounds(case, turns))
        print(f"{case:10} {figures['round_ms']:9.1f} {figures['kernels_ms']:8.1f} {figures['share']:6.0%}", flush=True)
    return rows


def of_steps(clients: int, repeats: int) -> list[dict[str, Any]]:
    """Measure and print the steps."""
    heads = ("loop ms", "vmap ms", "tape ms", "kernels", "bound", "reached")
    print(f"{'model':14} {'B':>4} " + " ".join(f"{h:>8}" for h in heads), flush=True)
    rows = []
    for case in CASES:
        rows.append(found := row(*case, clients, repeats))
        figures = [found[n] for n in ("loop_ms", "vmap_ms", "tape_ms", "kernels_ms", "bound", "reached")]
        print(f"{found['model']:14} {found['batch']:4} " + " ".join(f"{v:8.2f}" for v in figures), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
