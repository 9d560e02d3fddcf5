"""Rules for `vmap` that keep lookups within each client's own table; they replace PyTorch's.

PyTorch's rule for an embedding numbers the rows of all clients' tables consecutively.  So an index past the end of one
table reads, and trains, a row of the next client's, and a negative index one of the previous client's.  `index_fill`
does the same, `one_hot` checks no bound, and the padding row gets a gradient at every client but the first.  Here an
index out of range is an error in PyTorch's kernel, as without `vmap`, also in a replay.

Importing this module registers the rules for the whole process.  Other lookups (`w[i]`, gather, scatter, …) need none:
see tests/core/test_vmap_rules.py.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

_functorch = torch._C._functorch
_BATCHED = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)


def _embedding(
    weight: Tensor, ids: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Rows [..., D] of each client's table.  A sparse gradient becomes dense, with the same numbers."""
    level = _functorch.maybe_current_level() or 0
    (w, w_axis), (i, i_axis) = (_functorch._unwrap_batched(t, level) for t in (weight, ids))
    with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
        if w_axis is None:
            rows, axis = torch.embedding(w, i, padding_idx, scale_grad_by_freq, sparse), i_axis
        elif i_axis is None:
            w = w.movedim(w_axis, -2)  # [V, K, D]
            rows = torch.embedding(w.flatten(1), i, padding_idx, scale_grad_by_freq).unflatten(-1, w.shape[1:])
            axis = rows.dim() - 2
        else:
            w, i = w.movedim(w_axis, 0), i.movedim(i_axis, 0)
            numbered = _numbered_through(i, *w.shape[:2])
            rows, axis = torch.embedding(w.flatten(0, 1), numbered, -1, scale_grad_by_freq), 0
            if padding_idx >= 0:
                rows = torch.where((i == padding_idx)[..., None], rows.detach(), rows)
    return rows if axis is None else _functorch._add_batch_dim(rows, axis, level)


def _numbered_through(i: Tensor, clients: int, size: int) -> Tensor:
    """Turn row i of client k's table into a row of the concatenated tables; an error if the client has no such row."""
    row_numbers = torch.arange(size, device=i.device).expand(clients, size)
    numbers = row_numbers.gather(1, i.reshape(clients, -1).long())
    return (numbers + torch.arange(0, clients * size, size, device=i.device)[:, None]).view(i.shape)


def _one_hot(ids: Tensor, num_classes: int = -1) -> Tensor:
    if num_classes <= 0:
        raise RuntimeError(
            "one_hot under vmap cannot infer the number of classes; provide an explicit positive num_classes"
        )
    return ids.new_zeros(*ids.shape, num_classes).scatter(-1, ids[..., None], 1)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    return x.masked_fill(_members(x, dim, index), value)


def _index_fill_(x: Tensor, dim: int, index: Tensor, value: float | Tensor) -> Tensor:
    return x.masked_fill_(_members(x, dim, index), value)


def _members(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Which entries along an axis are selected, shaped to broadcast over the axes from there on."""
    size = x.shape[dim] if x.dim() else 1
    places = torch.where(index < 0, index + size, index).reshape(-1)
    members = torch.zeros(size, dtype=torch.bool, device=x.device).scatter(0, places, True)
    return members.view(size, *[1] * (x.dim() - 1 - dim % x.dim())) if x.dim() else members.view(())


_RULES = torch.library.Library("aten", "IMPL")  # kept alive: the rules exist only as long as it does
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
    for name, rule in {
        "embedding": _embedding,
        "one_hot": _one_hot,
        "index_fill.int_Scalar": _index_fill,
        "index_fill.int_Tensor": _index_fill,
        "index_fill_.int_Scalar": _index_fill_,
        "index_fill_.int_Tensor": _index_fill_,
    }.items():
        _RULES.impl(name, rule, "FuncTorchBatched")
