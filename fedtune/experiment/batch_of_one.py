"""Batches of one row, on which some nets cannot be trained: BatchNorm needs more than one value per channel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import Algorithm, Phase, Task
from fedtune.nn.net import layer_of, rule_of


def require_fit(
    alg: Algorithm, task: Task, frozen: Sequence[str], nets: Sequence[nn.Module], dtype: torch.dtype
) -> None:
    """UserError if this round trains a part that needs two rows in a batch.  nets: of the task's models."""
    plan: list[Any] = []
    with suppress(Exception):  # other errors are reported where it runs
        plan += alg.round(task)
    trained = {p for phase in plan if isinstance(phase, Phase) for p in phase.train or ("body", "head")}
    for name, net in zip(task.models, nets, strict=False):
        for part, module in net.named_children():
            module.train(part in trained and part not in frozen)
        try:
            with torch.no_grad(), randomness.seeded(0):
                net(torch.zeros(1, *task.shape, dtype=dtype))
        except Exception as error:  # other errors are reported where the net is trained
            if rule := rule_of(error, net):
                raise UserError(f"{rule}; {layer_of(error, net)} of {name}") from error
