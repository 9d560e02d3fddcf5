"""Batches of clients for evaluation and upload: as many clients at once as memory allows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.trees import Tree, join, take
from fedtune.data.federation import Split
from fedtune.engine.state import Group, RunSetup, no_steps
from fedtune.experiment.algorithm import Data
from fedtune.nn.layers import has_convolutions, stacked_layout

ROWS_AT_ONCE = 8192  # padded rows in evaluation and upload: bounds the memory of activations
CACHED_BYTES = 2**26  # the most bytes of a group's validation rows that are cached between rounds

BAND = 128  # this many rows of padding cost as much as another call
BLOCK = 512  # rows whose activations still fit in the cache for a small CNN's next layer
STEP = 8  # a band is shorter than its chunk by multiples of this: otherwise PyTorch uses other kernels

Part = Tensor | slice  # positions of clients in a group
Band = tuple[Part, int, int]  # clients; rows of each; rows of the longest client in their chunk
# per net, as long as it exists: which clients are scored together, and their cached rows
_BANDS: WeakKeyDictionary[nn.Module, dict[Any, tuple[list[Band], list[Data] | None, Any]]] = WeakKeyDictionary()


def over_rows(s: RunSetup, g: Group, table: Split, run: Callable[[Part, Data, int], Tree], keep: bool = False) -> Tree:
    """What `run` returns for a group's clients and their rows, in the clients' order.

    For code that processes rows independently, so that padding can be cut.  `run` also gets the chunk's full length, to
    which sums over rows must be padded: their rounding depends on it.
    keep: the table is used in every round, so its rows are cached, up to CACHED_BYTES per group.
    """
    cached = _BANDS.setdefault(g.net, {})
    key = id(s.federation.x), id(table.rows), g.executor, tuple(g.ids.tolist()), ROWS_AT_ONCE
    if key not in cached:
        bands = [band for part in _parts(g, table) for band in bands_of(table.counts[g.ids], part)]
        ready = None
        size = s.federation.x[0].numel() * s.federation.x.element_size()  # of a row, in bytes
        if keep and size * sum(len(g.ids[part]) * n for part, n, _ in bands) <= CACHED_BYTES:
            ready = [rows_of(s, table, g, part, rows) for part, rows, _ in bands]
        cached[key] = bands, ready, (s.federation.x, table.rows)  # kept alive, so that their ids stay valid
    bands, ready, _ = cached[key]
    data = ready or (rows_of(s, table, g, part, rows) for part, rows, _ in bands)
    results = [run(part, mine, longest) for (part, _, longest), mine in zip(bands, data, strict=True)]
    return _joined(results, [part for part, *_ in bands])


def in_chunks(g: Group, table: Split, run: Callable[[Part], Tree]) -> Tree:
    """What `run` returns for a group's clients, in their order: one by one in a loop, else a chunk at a time."""
    parts = _parts(g, table)
    return _joined([run(part) for part in parts], parts)


def _parts(g: Group, table: Split) -> list[Part]:
    """Which clients run together, as slices if they are consecutive."""
    if g.executor == "loop":
        return [slice(i, i + 1) for i in range(len(g.ids))]
    chunks = chunks_of(g, table)
    return [*chunks] if len(chunks) > 1 else [slice(None)]


def _joined(results: list[Tree], parts: list[Part]) -> Tree:
    joined, chunks = join(results), [part for part in parts if isinstance(part, Tensor)]
    return take(joined, torch.cat(chunks).argsort()) if chunks else joined


def bands_of(counts: Tensor, part: Part) -> list[Band]:
    """A chunk's clients in bands with similar numbers of rows, so that padding and calls cost least.

    counts: of the group.  For fewer than two clients or four rows PyTorch would use other kernels.
    """
    mine = counts[part].tolist()
    longest = max(mine)
    order = sorted(range(len(mine)), key=lambda i: -mine[i])
    cut = [longest - max(0, longest - max(mine[i], STEP)) // STEP * STEP for i in order]  # rows, with padding
    costs, begin = [0] + [10**18] * len(order), [0] * (len(order) + 1)  # entry i: the least cost of the first i clients
    for end in range(1, len(order) + 1):
        for i in range(end - 1 if len(order) > 1 else end):
            if (cost := costs[i] + BAND + (end - i) * cut[i]) < costs[end]:
                costs[end], begin[end] = cost, i
    ends = [len(order)]
    while ends[-1]:
        ends.append(begin[ends[-1]])
    places = torch.arange(len(counts), device=counts.device)[part]
    bands: list[Band] = [(places[sorted(order[a:b])], cut[a], longest) for b, a in pairwise(ends)]
    return bands if len(bands) > 1 else [(part, longest, longest)]


def blocks_of(rows: int, clients: int) -> list[slice]:
    """Split rows of this many clients into blocks of about BLOCK rows in total.

    They are equally long, a multiple of STEP rows per client; only the last has half to one and a half as many.
    """
    size = max(STEP, BLOCK // clients // STEP * STEP)
    starts = range(0, max(1, rows - size // 2), size)
    return [slice(a, b) for a, b in pairwise([*starts, rows])]


def chunks_of(g: Group, table: Split) -> list[Tensor]:
    """Positions of the clients that run together, in chunks of at most ROWS_AT_ONCE padded rows.

    Clients with similar numbers of rows are grouped, the largest first: little padding, and hardly any client alone.
    """
    counts = table.counts[g.ids].tolist()
    parts: list[list[int]] = []
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        room = ROWS_AT_ONCE // counts[parts[-1][0]] if parts else 0
        parts[-1].append(i) if parts and len(parts[-1]) < room else parts.append([i])
    return [torch.tensor(sorted(part), device=g.ids.device) for part in parts]


def rows_of(s: RunSetup, table: Split, g: Group, part: Part, longest: int | None = None) -> Data:
    """The rows of some clients of a group, padded to `longest`, or to the longest of them."""
    ids = g.ids[part]
    counts = table.counts[ids]
    rows = table.rows[ids, : int(counts.max()) if longest is None else longest]
    x = s.federation.x[rows]
    if g.executor == "stack" and has_convolutions(g.net):
        x = stacked_layout(x)
    mask = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
    return Data(x, s.federation.y[rows], mask, {}, {}, no_steps(s, g.net, ids))
