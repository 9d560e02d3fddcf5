"""Clients' rows as evaluation and upload go through them: as many clients at once as the memory should hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtune.core.trees import Tree, join, take
from fedtune.data.federation import Split
from fedtune.federated.algorithm import Data
from fedtune.federated.state import Group, Setting, no_steps
from fedtune.nn.layers import has_convolutions, stacked_layout

ROWS_AT_ONCE = 8192  # of evaluation and upload, padded: bounds the memory of activations

Part = Tensor | slice  # positions of some of a group's clients


def in_chunks(g: Group, table: Split, run: Callable[[Part], Tree]) -> Tree:
    """What `run` gives for a group's clients, in their order: one by one in a loop, else a chunk of them at a time."""
    if g.executor == "loop":
        return join([run(slice(i, i + 1)) for i in range(len(g.ids))])
    parts = chunks_of(g, table)
    if len(parts) == 1:
        return run(slice(None))
    return take(join([run(part) for part in parts]), torch.cat(parts).argsort())


def chunks_of(g: Group, table: Split) -> list[Tensor]:
    """Positions of the clients that run together, chunk by chunk: as many as ROWS_AT_ONCE holds, padded.

    Clients with about as many rows go together, the largest first: little is padding, and hardly any is left alone.
    (Stacked clients of the two-conv CNN predict twice as many rows a second as one alone: benchmarks/clients.py.)
    """
    counts = table.counts[g.ids].tolist()
    parts: list[list[int]] = []
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        room = ROWS_AT_ONCE // counts[parts[-1][0]] if parts else 0
        parts[-1].append(i) if parts and len(parts[-1]) < room else parts.append([i])
    return [torch.tensor(sorted(part), device=g.ids.device) for part in parts]


def rows_of(s: Setting, table: Split, g: Group, part: Part) -> Data:
    """The rows of some clients of a group, padded to the longest of them."""
    ids = g.ids[part]
    counts = table.counts[ids]
    rows = table.rows[ids, : int(counts.max())]
    x = s.federation.x[rows]
    if g.executor == "stack" and has_convolutions(g.net):
        x = stacked_layout(x)
    mask = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
    return Data(x, s.federation.y[rows], mask, {}, {}, no_steps(s, ids))
