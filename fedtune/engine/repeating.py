"""Code that remembers is found by its results: the same call, made many times, must give the same numbers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedtune import tracing
from fedtune.core.errors import Diverged
from fedtune.core.trees import named

CLOCK = ("seconds", "eval_seconds")
CALLS, SECONDS = 1000, 2.0  # at most; seconds of this thread's processor time
KEEP = "keep what changes in a client's state (`keep`, `remember`), the server's (`init`, `aggregate`) or in buffers"
ROUNDING = 1e-6  # of a tensor's largest number


def unsteady(call: Callable[[], Mapping[str, Tensor]], calls: int) -> str:
    """The name of the first number that differs when a call is made again, up to so many times; "" if none does."""
    first, began = call(), time.thread_time()
    for _ in range(calls - 1):
        if name := different(first, call()):
            return name
        if time.thread_time() - began > SECONDS:
            break
    return ""


def different(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    """The first name whose numbers are not the same, but for rounding; "" if all are."""
    names = [*first, *(n for n in second if n not in first)]
    return next((n for n in names if n not in first or n not in second or not _same(first[n], second[n])), "")


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape:
        return False
    if torch.equal(first, second):
        return True
    first, second = first.double(), second.double()
    bound = ROUNDING * float(first.nan_to_num().abs().amax())
    return torch.allclose(first, second, rtol=0.0, atol=bound, equal_nan=True)


def trained_numbers(simulation: Any) -> dict[str, Tensor]:
    """Copies of the server's entries and the clients' tensors, by name, and the round."""
    state = simulation.state
    tree = {"server": state.server, "clients": tuple((g.tensors, g.kept) for g in state.groups)}
    return {n: t.clone() for n, t in named(tree).items()} | {"round": torch.tensor(state.round)}


def metrics(row: Mapping[str, Any]) -> dict[str, Tensor]:
    """A round's metrics by name, without its seconds."""
    return {f"the round/{n}": torch.tensor(v) for n, v in row.items() if n not in CLOCK and isinstance(v, float)}


def unsteady_round(simulation: Any, times: int) -> str:
    """The first tensor or metric that gets another value when a round is run again from the same state; "" if none.

    times: how often it runs at most.  Raises what the first round raises; a later one that diverges has no numbers.
    """
    start, rounds = copy.deepcopy(simulation.state_dict()), 0

    def round_again() -> dict[str, Tensor]:
        nonlocal rounds
        rounds += 1
        simulation.load_state_dict(copy.deepcopy(start))
        try:
            row = simulation.step()
        except Diverged:
            if rounds == 1:
                raise
            return {}
        return trained_numbers(simulation) | metrics(row)

    with tracing.eager():
        return unsteady(round_again, times)
