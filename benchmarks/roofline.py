"""What a stacked step cannot cost less than: its kernels, each run by itself on the tensors that it met.

    python -m benchmarks.roofline [--repeats 20] [--clients 20] [--json FILE]

Of every net and batch size: milliseconds of a step of all clients as a plain eager loop over them (forward, backward,
SGD with momentum), as vmap and autograd run it stacked, as its tape runs it, and of its kernels alone: the operations
that compute something, without views, the least of several runs of each, added up.  `bound` is the ratio to the loop
that these kernels allow, `reached` the tape's.  CPU time of one thread; what is said of the step leaves out reading the
batch and the optimiser.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtune.core import memory
from fedtune.core.recording import Recorder
from fedtune.core.tape import Tape
from fedtune.nn import architectures
from fedtune.nn.layers import has_convolutions, stacked_layout

CASES = [
    (model, shape, batch)
    for model, shape in (("cnn8", (1, 8, 8)), *((m, (1, 28, 28)) for m in ("fedproto-cnn", "fedgen-cnn", "mlp")))
    for batch in (4, 32)
]


def least(job: Callable[[], object], repeats: int) -> float:
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
    with (recorder := Recorder([*fixed, x, y])):
        results = stacked()
    lines = [line for line in recorder.lines if any(_computes(recorder, line, s) for s in line.outs if s is not None)]
    calls = [(line.func, *recorder.filled((line.args, line.kwargs))) for line in lines]
    moving = [i for i, t in enumerate(fixed) if t.requires_grad]
    with torch.inference_mode():
        replay = Tape(recorder, len(fixed), 2, moving, results).bind(fixed)
        kernels = sum(least(lambda c=call: c[0](*c[1], **c[2]), repeats) for call in calls)
        tape = least(lambda: replay(x, y), repeats)
    eager, plain = least(stacked, repeats), least(loop, repeats)
    return {
        "model": model, "batch": batch, "clients": clients, "loop_ms": plain, "vmap_ms": eager, "tape_ms": tape,
        "kernels_ms": kernels, "bound": plain / kernels, "reached": plain / tape,
    }  # fmt: skip


def _computes(recorder: Recorder, line: Any, slot: int) -> bool:
    """Whether a line does more than look at the memory of its operands."""
    mine = recorder.tensors[slot].untyped_storage().data_ptr()
    given = [t for t in recorder.filled((*line.args, *line.kwargs.values())) if isinstance(t, Tensor)]
    return bool(line.writes) or all(t.untyped_storage().data_ptr() != mine for t in given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed_memory()
    heads = ("loop ms", "vmap ms", "tape ms", "kernels", "bound", "reached")
    print(f"{'model':14} {'B':>4} " + " ".join(f"{h:>8}" for h in heads), flush=True)
    rows = []
    for case in CASES:
        found = row(*case, args.clients, args.repeats)
        rows.append(found)
        figures = [found[n] for n in ("loop_ms", "vmap_ms", "tape_ms", "kernels_ms", "bound", "reached")]
        print(f"{found['model']:14} {found['batch']:4} " + " ".join(f"{v:8.2f}" for v in figures), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
