"""Which way to run many clients: a rule, so that the same command always does the same.

`auto` is the rule, but for a user's own algorithm or model, which is tried first and timed: `settling`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtune.core.errors import unknown

if TYPE_CHECKING:  # the names are read by commands that need no PyTorch
    from torch import nn

    from fedtune.core.trees import Executor

EXECUTORS = ("auto", "rule", "stack", "loop")

# Parameters of one client's model.  Below, stacking wins at every batch size measured, from the 13,706 of the digits
# CNN (5 times at B = 4) to the 582,026 of McMahan's (1.2 times); ResNet-18 with 11 million is slower stacked, for one
# client's step already fills the caches.  Nothing was measured in between.  See benchmarks/engine.py.
STACK_BELOW = 2_000_000


def choose(name: str, net: nn.Module, device: str) -> Executor:
    """The executor for this model and device; `name` forces one.

    On a GPU a loop is bound by kernel launches, so there the stack is the choice for every model.
    """
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if name in ("stack", "loop"):
        return "stack" if name == "stack" else "loop"
    small = sum(p.numel() for p in net.parameters()) < STACK_BELOW
    return "stack" if small or device != "cpu" else "loop"
