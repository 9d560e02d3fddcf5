"""What clients send of `shared`, as updates that pass stages before the server sees models again.

    Δ_k = w_k - d_k          over the trained tensors, d_k: what client k received in this round
    u_k = stages(Δ_k)        always in this order: compress, clip, scale, add noise
    the server gets d_k + u_k, and of a client that no stage changed w_k itself, bit for bit

Clipping comes after compression, as an unbiased quantiser can lengthen an update, and privacy needs the length of what
is really sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedtune.core.trees import Size, Tree, size
from fedtune.engine.state import RunSetup

Update = dict[str, Tensor]  # trained tensors by full name, in alphabetical order, each [m, …]


class Context(NamedTuple):
    """Where a stage works.  What it keeps between rounds, and its figures of the round, it writes into the dicts."""

    s: RunSetup
    t: int  # the round, from 1 on
    ids: Tensor  # [m] the clients whose updates these are, ascending
    extra: dict[str, Tree]  # what the engine keeps: `State.extra`
    wire: dict[str, Tree]  # what it keeps of each of these clients [m, …]: `Group.wire`; an entry begins as zeros
    row: dict[str, float | None]  # columns of the round's row


class Sent(NamedTuple):
    """The clients' updates after a stage."""

    update: Update
    changed: Tensor  # [m] bool: whose update the stage changed
    size: Size | None = None  # of all these messages as they are sent; None: as before the stage


class Stage(Protocol):
    """A step between the clients' training and `aggregate`."""

    def apply(self, update: Update, ctx: Context) -> Sent:
        """The updates after it; those that are given stay as they are."""
        ...


def through(
    stages: Sequence[Stage], up: dict[str, Tree], down: dict[str, Tensor], ctx: Context
) -> tuple[dict[str, Tree], Size]:
    """The uploads `up` [m, …] after all stages, and the size of what was sent.  down: what the clients received."""
    was: Update = {n: up["shared"][n] for n in sorted(set(ctx.s.task.parameters).intersection(up["shared"], down))}
    update = {n: w - down[n] for n, w in was.items()}
    changed, sent_size = torch.zeros(1, dtype=torch.bool, device=ctx.ids.device), size(was)
    for stage in stages if was else ():
        update, by_stage, new_size = stage.apply(update, ctx)
        changed, sent_size = changed | by_stage, sent_size if new_size is None else new_size
    got = {n: torch.where(per_client(changed, w), down[n] + update[n], w) for n, w in was.items()}
    rest = up | {"shared": {n: t for n, t in up["shared"].items() if n not in was}}
    return up | {"shared": up["shared"] | got}, size(rest).plus(sent_size)


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [m] with as many axes as a tensor [m, …]."""
    return values.view(-1, *[1] * (like.dim() - 1))
