"""Clients' rows as evaluation and upload go through them: as many clients at once as the memory should hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.trees import Tree, join, take
from fedtune.data.federation import Split
from fedtune.federated.algorithm import Data
from fedtune.federated.state import Group, Setting, no_steps
from fedtune.nn.layers import has_convolutions, stacked_layout

ROWS_AT_ONCE = 8192  # of evaluation and upload, padded: bounds the memory of activations
KEPT = 2**26  # bytes of a group's validation rows that are kept from round to round

Part = Tensor | slice  # positions of some of a group's clients
# of a run's nets: who is scored together, and what is kept of their rows, for as long as the net is
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, tuple[list[Part], list[Data] | None, Any]]] = WeakKeyDictionary()


def over_rows(s: Setting, g: Group, table: Split, run: Callable[[Part, Data], Tree], keep: bool = False) -> Tree:
    """What `run` gives for a group's clients and their rows, in their order, as `in_chunks` goes through them.

    keep: the table is wanted in every round, so its rows are made once a run, up to KEPT bytes of a group's.
    """
    known = _KNOWN.setdefault(g.net, {})
    key = id(s.federation.x), id(table.rows), g.executor, tuple(g.ids.tolist()), ROWS_AT_ONCE
    if key not in known:
        parts = _parts(g, table)
        small = keep and _bytes(s, table, g, parts) <= KEPT
        ready = [rows_of(s, table, g, part) for part in parts] if small else None
        known[key] = parts, ready, (s.federation.x, table.rows)  # which keep their ids
    parts, ready, _ = known[key]
    rows = ready or (rows_of(s, table, g, part) for part in parts)
    return _joined([run(part, data) for part, data in zip(parts, rows, strict=True)], parts)


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


def _bytes(s: Setting, table: Split, g: Group, parts: list[Part]) -> int:
    """What a group's rows take as the models take them."""
    rows = sum(len(g.ids[part]) * int(table.counts[g.ids[part]].max()) for part in parts)
    return rows * s.federation.x[0].numel() * s.federation.x.element_size()


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
