"""A data set partitioned among clients: made once per search, shared by all trials, put on a device by each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtune.data.assignment import Partition
from fedtune.data.dataset import Dataset


class Split(NamedTuple):
    """Rows of every client, in one table.  rows [K, N], padded with a real row; counts [K] says how many are real."""

    rows: Any
    counts: Any


class Federation(NamedTuple):
    """The rows that the clients hold and who holds which.  Arrays of numpy (to be shared) or tensors (to be used).

    x [R, …], y [R]: only rows that somebody holds, each once, so 10,000 clients cost no padding.
    """

    x: Any
    y: Any
    classes: int
    train: Split
    val: Split
    test: Split

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.train.counts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row: channels, height, width of an image, the features of a vector, the length of tokens."""
        return tuple(self.x.shape[1:])

    def to(self, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Federation:
        """The same as tensors on a device; on a CPU in float32 they share the arrays' memory."""

        def tensor(a: Any) -> Tensor:
            with warnings.catch_warnings():
                # arrays from Ray's object store are read-only; nobody writes to them
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                t = torch.as_tensor(a)
            return t.to(device, dtype if t.is_floating_point() else t.dtype)

        splits = (Split(tensor(s.rows), tensor(s.counts)) for s in (self.train, self.val, self.test))
        return Federation(tensor(self.x), tensor(self.y), self.classes, *splits)


def of_all_classes(f: Federation, rows: int, generator: torch.Generator) -> Split:
    """About `rows` test rows, as many of each class, drawn from what all clients hold: the same for every client.

    f holds tensors.  A class that nobody tests on is left out; one with fewer rows than its share gives what it has.
    """
    real = torch.arange(f.test.rows.shape[1]) < f.test.counts.cpu()[:, None]
    held = f.test.rows.cpu()[real]
    held = held[torch.randperm(len(held), generator=generator)]
    y = f.y.cpu()[held]
    share = max(1, rows // f.classes)
    chosen = torch.cat([held[y == c][:share] for c in range(f.classes)]).to(f.x.device)
    return Split(chosen.expand(f.clients, -1), torch.full_like(f.test.counts, len(chosen)))


def classes_held(f: Federation) -> Tensor:
    """Which classes each client has training rows of, [K, C] bool; f holds tensors."""
    real = torch.arange(f.train.rows.shape[1], device=f.train.counts.device) < f.train.counts[:, None]
    seen = torch.zeros(f.clients, f.classes, device=f.y.device)
    return seen.scatter_add_(1, f.y[f.train.rows], real.to(seen)) > 0


def joined(federations: Sequence[Federation]) -> Federation:
    """Several federations of one data set as one, their clients one federation after the other.  They hold tensors."""
    x, y = (torch.cat([getattr(f, name) for f in federations]) for name in ("x", "y"))
    sizes = [len(f.x) for f in federations]
    splits = (joined_split([getattr(f, n) for f in federations], sizes) for n in ("train", "val", "test"))
    return Federation(x, y, federations[0].classes, *splits)


def joined_split(splits: Sequence[Split], sizes: Sequence[int]) -> Split:
    """Tables of several federations, whose rows lie one after the other, as one.  sizes: rows of each."""
    longest, tables, first = max(s.rows.shape[1] for s in splits), [], 0
    for s, size in zip(splits, sizes, strict=True):
        padding = s.rows[:, :1].expand(-1, longest - s.rows.shape[1])
        tables.append(torch.cat([s.rows, padding], 1) + first)
        first += size
    return Split(torch.cat(tables), torch.cat([s.counts for s in splits]))


def partitioned(data: Dataset, rows: np.ndarray, parts: Partition, first_class: int = 0) -> Federation:
    """The federation of a loaded data set whose rows are given to clients.

    rows   rows of the data set; parts hold places in it.      first_class   the class that is renumbered 0.
    """
    held = np.unique(np.concatenate([one for split in parts for one in split]))
    splits = (_table([np.searchsorted(held, one) for one in split]) for split in parts)
    original = rows[held]
    return Federation(data.x[original], data.y[original] - first_class, data.classes, *splits)


def _table(rows: list[np.ndarray]) -> Split:
    counts = np.array([len(r) for r in rows])
    real = np.arange(counts.max()) < counts[:, None]
    table = np.repeat(np.array([r[0] for r in rows])[:, None], counts.max(), axis=1)
    table[real] = np.concatenate(rows)
    return Split(table, counts)
