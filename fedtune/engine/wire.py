"""What clients send of `shared`, as updates that pass stages before the server sees models again.

    Δ_k = w_k - d_k          over the trained tensors, d_k: what client k received in this round
    u_k = stages(Δ_k)        always in this order: compress, clip, scale, add noise
    the server gets d_k + u_k, and of a client that no stage changed w_k itself, bit for bit

Clipping comes after compression, as an unbiased quantiser can lengthen an update, and privacy needs the length of what
is really sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedtune.core import memory
from fedtune.core.errors import UserError
from fedtune.core.trees import NOTHING, Size, Tree, bytes_of_each, size
from fedtune.engine import codecs
from fedtune.engine.state import Group, RunSetup

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


class Stage(Protocol):
    """A step between the clients' training and `aggregate`."""

    def apply(self, update: Update, ctx: Context) -> Sent:
        """The updates after it; those that are given stay as they are."""
        ...


class Codec:
    """The first stage: what the server reads of compressed updates; `residual` [m, P] is left to the clients."""

    def apply(self, update: Update, ctx: Context) -> Sent:
        """The updates as they are read; with error feedback, of the updates with what was left."""
        scenario, sizes = ctx.s.scenario, [t[0].numel() for t in update.values()]
        whole = flat = torch.cat([t.flatten(1) if t.dim() > 1 else t[:, None] for t in update.values()], 1)
        if "residual" in ctx.wire and codecs.feeds_back(scenario):
            whole = flat + ctx.wire["residual"]
        read = codecs.decoded(scenario, whole, sizes, ctx.s.streams(ctx.ids, "wire", ctx.t))
        if codecs.feeds_back(scenario):
            ctx.wire["residual"] = whole - read
        parts = zip(update.items(), read.split(sizes, 1), strict=True)
        return Sent({n: part.reshape(t.shape) for (n, t), part in parts}, (read != flat).any(1))


def require_room(s: RunSetup, shared: dict[str, Tensor]) -> None:
    """UserError if what a codec leaves to clients may exceed the memory that is free.  shared: the server's tensors."""
    if not codecs.feeds_back(s.scenario):
        return
    numbers = sum(t.numel() for n, t in shared.items() if n in s.task.parameters)
    kept, free = s.task.clients * numbers * s.dtype.itemsize, memory.free(s.federation.x.device.type)
    if kept > free:
        raise UserError(
            f"error feedback keeps {numbers:,} numbers of each of {s.task.clients} clients, {kept / 1e9:.3g} GB, but "
            f"only {free / 1e9:.3g} GB are free; use --set error_feedback=false, or --compress qsgd, which needs none"
        )


def residual(groups: Sequence[Group]) -> dict[str, float]:
    """The column `residual`, the mean over clients of the norm of what codecs have left to them; none without any."""
    left = [torch.linalg.vector_norm(g.wire["residual"], dim=1).double() for g in groups if "residual" in g.wire]
    return {"residual": torch.cat(left).mean().item()} if left else {}


def sizes(s: RunSetup, up: dict[str, Tree], clients: int) -> tuple[Size, Tensor]:
    """The size of so many clients' uploads as they are sent, and the bytes of each [m], on the CPU, in float64."""
    if s.scenario.compress == "none":
        return size(up), bytes_of_each(up, clients)
    each = codecs.sizes_of_each(s.scenario, s.task.parameters, up, clients)
    return reduce(Size.plus, each, NOTHING), torch.tensor([e.bytes for e in each], dtype=torch.float64)


def through(stages: Sequence[Stage], up: dict[str, Tree], down: dict[str, Tensor], ctx: Context) -> dict[str, Tree]:
    """The uploads `up` [m, …] after all stages.  down: what the clients received."""
    shared, trained = up.get("shared", {}), set(ctx.s.task.parameters)
    # FedFomo's clients receive several models each: there is none to which an update could refer
    refers = [n for n in sorted(trained.intersection(shared, down)) if down[n].shape == shared[n].shape]
    if ctx.s.scenario.privacy == "client" and len(refers) < len(trained & shared.keys()):
        raise UserError("privacy=client needs updates of models that clients received in the round, but some were not")
    was: Update = {n: shared[n] for n in refers}
    update = {n: w - down[n] for n, w in was.items()}
    changed = torch.zeros(1, dtype=torch.bool, device=ctx.ids.device)
    for stage in stages if was else ():
        update, by_stage = stage.apply(update, ctx)
        changed = changed | by_stage
    got = {n: torch.where(per_client(changed, w), down[n] + update[n], w) for n, w in was.items()}
    rest = up | {"shared": {n: t for n, t in shared.items() if n not in was}}
    others = codecs.decoded_others(ctx.s.scenario, rest, ctx.s.streams(ctx.ids, "wire of others", ctx.t))
    others["shared"] = shared | others["shared"] | got
    return {n: others[n] for n in up}


def per_client(values: Tensor, like: Tensor) -> Tensor:
    """Values [m] with as many axes as a tensor [m, …]."""
    return values.view(-1, *[1] * (like.dim() - 1))
