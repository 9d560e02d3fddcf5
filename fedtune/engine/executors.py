"""Choose how to run many clients, by a rule, so that the same command always does the same.

`auto` follows the rule, except for a user's own algorithm or model, which is tried and timed first: `executor_choice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedtune.core.errors import UserError, require_known

if TYPE_CHECKING:  # commands that do not need PyTorch import this module for the names
    from torch import Tensor, nn

    from fedtune.core.trees import Executor

EXECUTORS = ("auto", "rule", "stack", "loop")

# Parameters of one client's model.  Stacking is faster for the 13,706 of the digits CNN (5 times at B = 4) and the
# 582,026 of McMahan's (1.2 times), and slower for ResNet-18's 11 million, which alone fill the caches; nothing was
# measured in between (benchmarks/engine.py).  Layers that say `faster_alone` (an LSTM) take the loop at any size.
STACK_BELOW = 2_000_000

# The most parameters (and other client tensors) in a stack of several runs' clients.  Training holds up to six copies
# (values, gradients, momentum): 0.5 GB in float32.
NUMBERS_AT_ONCE = 20_000_000

# Clients of several runs are stacked until a step's arithmetic takes this many microseconds, by the estimate of
# `step_cost`: then a step's dispatch of about 5 ms is a fifth of it, and more clients gain nothing.
STEP_AT_MOST = 20_000.0


def require_device(device: str) -> None:
    """UserError unless the device exists."""
    import torch

    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise UserError(f"device must be cpu, or cuda where there is a GPU, but got {device!r}; use --device cpu")


def choose(name: str, net: nn.Module, device: str) -> Executor:
    """The executor for this model and device; `name` forces one.

    A net with a hook, which may keep what it sees, runs in a loop.  On a GPU, where kernel launches limit a loop, every
    other model is stacked.
    """
    require_known("executor", [name], EXECUTORS)
    from fedtune.nn.net import hook_of

    if name != "loop" and (layer := hook_of(net)):
        if name == "stack":
            raise UserError(f"a net with a hook cannot run stacked, but {layer} has one; give --executor loop")
        return "loop"
    if name in ("stack", "loop"):
        return "stack" if name == "stack" else "loop"
    small = sum(p.numel() for p in net.parameters()) < STACK_BELOW
    faster_alone = any(getattr(m, "faster_alone", False) for m in net.modules())
    return "stack" if small and not faster_alone or device != "cpu" else "loop"


def clients_at_once(net: nn.Module, rows: Tensor, batch: int, device: str) -> int:
    """How many clients one stack should hold, if clients of several runs can share it.

    On a GPU only memory limits it.  rows: some of the rows that the net reads.
    """
    parameters = sum(p.numel() for p in net.parameters())
    limit = NUMBERS_AT_ONCE // max(1, parameters)
    return limit if device != "cpu" else min(limit, int(STEP_AT_MOST / step_cost(net, rows, batch)))


def step_cost(net: nn.Module, rows: Tensor, batch: int) -> float:
    """Estimated microseconds per client in a large stack's step on a CPU, without dispatch.

    50 + 0.25 per thousand multiply-adds of the batch's forward pass + 2 per thousand parameters: 0.9 to 1.9 of the
    actual time (EPYC 9004, one thread; benchmarks/engine.py).  It is kept, because another estimate would pack other
    seeds together, and in float32 results would differ in the eighth digit.
    """
    parameters = sum(p.numel() for p in net.parameters())
    return 50 + 0.25e-3 * batch * _multiply_adds(net, rows[:1]) + 2e-3 * parameters


def _multiply_adds(net: nn.Module, row: Tensor) -> float:
    """Multiply-adds of a row's forward pass through the layers with weights."""
    from torch import Tensor, inference_mode

    total, training = 0.0, net.training

    def count(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal total
        weight = getattr(layer, "weight", None)
        if weight is not None and weight.ndim > 1 and isinstance(output, Tensor):
            total += output.numel() / len(weight) * weight.numel()

    hooks = [m.register_forward_hook(count) for m in net.modules()]
    with inference_mode():
        net.eval()(row)
    for hook in hooks:
        hook.remove()
    net.train(training)
    return total
