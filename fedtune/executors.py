"""Which way to run many clients: a rule, so that the same command always does the same."""

from __future__ import annotations

import torch
from torch import nn

from fedtune.errors import unknown
from fedtune.stacked import Executor

EXECUTORS = ("auto", "stack", "loop")

# Multiply-adds of one client's forward pass over one batch.  Below, a step on a CPU is bound by the overhead of its
# operations, which stacking shares among the clients; above, by arithmetic, where one client at a time keeps its
# working set in cache.  Measured by benchmarks/engine.py.
STACK_BELOW = 40e6


def choose(name: str, net: nn.Module, shape: tuple[int, int, int], batch: int, device: str) -> Executor:
    """The executor for this model, batch and device; `name` forces one.

    On a GPU a loop is bound by kernel launches, so there the stack is the choice for every model.
    """
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if name != "auto":
        return "stack" if name == "stack" else "loop"
    if device != "cpu":
        return "stack"
    return "stack" if batch * multiply_adds(net, shape) < STACK_BELOW else "loop"


def multiply_adds(net: nn.Module, shape: tuple[int, int, int]) -> int:
    """Multiply-adds of the convolutions and linear layers for one image."""
    total = 0

    def count(module: nn.Module, _: tuple, out: torch.Tensor) -> None:
        nonlocal total
        weight = module.weight
        total += out[0].numel() * weight[0].numel()  # type: ignore[index]

    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [m.register_forward_hook(count) for m in layers]
    training = net.training
    with torch.no_grad():
        reference = next(net.parameters())
        net.eval()(torch.zeros(1, *shape, dtype=reference.dtype, device=reference.device))
    net.train(training)
    for hook in hooks:
        hook.remove()
    return total
