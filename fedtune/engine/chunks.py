"""Clients' rows as evaluation and upload go through them: as many clients at once as the memory should hold."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.trees import Tree, join, take
from fedtune.data.federation import Split
from fedtune.engine.state import Group, Setting, no_steps
from fedtune.experiment.algorithm import Data
from fedtune.nn.layers import has_convolutions, stacked_layout

ROWS_AT_ONCE = 8192  # of evaluation and upload, padded: bounds the memory of activations
KEPT = 2**26  # bytes of a group's validation rows that are kept from round to round

BAND = 128  # rows of padding that are as dear as another call
BLOCK = 512  # rows whose activations a small CNN's next layer still finds in the cache
STEP = 8  # by which a band is shorter than its chunk: PyTorch's products of other remainders are other kernels

Part = Tensor | slice  # positions of some of a group's clients
Band = tuple[Part, int, int]  # who; how many rows of each; how many the longest of their chunk has
# of a run's nets: who is scored together, and what is kept of their rows, for as long as the net is
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, tuple[list[Band], list[Data] | None, Any]]] = WeakKeyDictionary()


def over_rows(s: Setting, g: Group, table: Split, run: Callable[[Part, Data, int], Tree], keep: bool = False) -> Tree:
    """What `run` gives for a group's clients and their rows, in their order, and how many rows their chunk was cut to.

    For code that goes through rows one by one, so a chunk's padding is left out; sums over rows are to be made as long
    as the chunk is, as their rounding depends on that.
    keep: the table is wanted in every round, so its rows are made once a run, up to KEPT bytes of a group's.
    """
    known = _KNOWN.setdefault(g.net, {})
    key = id(s.federation.x), id(table.rows), g.executor, tuple(g.ids.tolist()), ROWS_AT_ONCE
    if key not in known:
        bands = [band for part in _parts(g, table) for band in bands_of(table.counts[g.ids], part)]
        ready = None
        if keep and _bytes(s, g, bands) <= KEPT:
            ready = [rows_of(s, table, g, part, rows) for part, rows, _ in bands]
        known[key] = bands, ready, (s.federation.x, table.rows)  # which keep their ids
    bands, ready, _ = known[key]
    data = ready or (rows_of(s, table, g, part, rows) for part, rows, _ in bands)
    found = [run(part, mine, longest) for (part, _, longest), mine in zip(bands, data, strict=True)]
    return _joined(found, [part for part, *_ in bands])


def in_chunks(g: Group, table: Split, run: Callable[[Part], Tree]) -> Tree:
    """What `run` gives for a group's clients, in their order: one by one in a loop, else a chunk of them at a time."""
    parts = _parts(g, table)
    return _joined([run(part) for part in parts], parts)


def _parts(g: Group, table: Split) -> list[Part]:
    """Who runs together, as slices where that is in order."""
    if g.executor == "loop":
        return [slice(i, i + 1) for i in range(len(g.ids))]
    chunks = chunks_of(g, table)
    return [*chunks] if len(chunks) > 1 else [slice(None)]


def _joined(found: list[Tree], parts: list[Part]) -> Tree:
    """What was found part by part, in the clients' order."""
    whole, chunks = join(found), [part for part in parts if isinstance(part, Tensor)]
    return take(whole, torch.cat(chunks).argsort()) if chunks else whole


def _bytes(s: Setting, g: Group, bands: list[Band]) -> int:
    """What a group's rows take as the models take them."""
    rows = sum(len(g.ids[part]) * n for part, n, _ in bands)
    return rows * s.federation.x[0].numel() * s.federation.x.element_size()


def bands_of(counts: Tensor, part: Part) -> list[Band]:
    """A chunk's clients, those with about as many rows together, so that padding and calls cost least.

    counts: of the group.  There are two clients at least in a band, as one alone is another kernel; so is a product of
    less than four rows.
    """
    mine = counts[part].tolist()
    longest = max(mine)
    order = sorted(range(len(mine)), key=lambda i: -mine[i])
    cut = [longest - max(0, longest - max(mine[i], STEP)) // STEP * STEP for i in order]  # rows, with padding
    least, begin = [0] + [10**18] * len(order), [0] * (len(order) + 1)  # of the first so many clients
    for end in range(1, len(order) + 1):
        for i in range(end - 1 if len(order) > 1 else end):
            if (cost := least[i] + BAND + (end - i) * cut[i]) < least[end]:
                least[end], begin[end] = cost, i
    ends = [len(order)]
    while ends[-1]:
        ends.append(begin[ends[-1]])
    places = torch.arange(len(counts), device=counts.device)[part]
    found: list[Band] = [(places[sorted(order[a:b])], cut[a], longest) for b, a in pairwise(ends)]
    return found if len(found) > 1 else [(part, longest, longest)]


def blocks_of(rows: int, clients: int) -> list[slice]:
    """Rows of so many clients in blocks of about BLOCK in all, which end on the same remainder by STEP as the whole.

    Blocks are equally long, STEP rows of each client at least, but for the last, which has half to one and a half as
    many rows, so that none is short.
    """
    each = max(STEP, BLOCK // clients // STEP * STEP)
    starts = range(0, max(1, rows - each // 2), each)
    return [slice(a, b) for a, b in pairwise([*starts, rows])]


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


def rows_of(s: Setting, table: Split, g: Group, part: Part, longest: int | None = None) -> Data:
    """The rows of some clients of a group, padded to so many, or to the longest of them."""
    ids = g.ids[part]
    counts = table.counts[ids]
    rows = table.rows[ids, : int(counts.max()) if longest is None else longest]
    x = s.federation.x[rows]
    if g.executor == "stack" and has_convolutions(g.net):
        x = stacked_layout(x)
    mask = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
    return Data(x, s.federation.y[rows], mask, {}, {}, no_steps(s, g.net, ids))
