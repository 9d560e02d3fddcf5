"""A data set partitioned over clients: made once per search, shared by all trials, moved to a device by each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtune.core.terminal import few
from fedtune.data.assignment import Partition
from fedtune.data.dataset import Dataset

Owners = tuple[tuple[str, ...], ...]  # the owner names of each client; () if clients have no names


def owner_of(owners: Owners, client: int) -> str:
    """The owner of a client's rows, or a group's owners joined by " + "; "" if it has no name."""
    return " + ".join(owners[client]) if owners else ""


def in_words(owners: Owners, client: int) -> str:
    """A client for messages: its owners' names, with its number if it shares them or has none."""
    if not owners:
        return f"client {client}"
    owner_text = f"owner{'s' * (len(owners[client]) > 1)} {owner_of(owners, client)}"
    return f"client {client} ({owner_text})" if owners.count(owners[client]) > 1 else owner_text


def some(owners: Owners, clients: Sequence[int]) -> str:
    """The first of several clients, by name if they have names, else by number."""
    return few([owner_of(owners, k) or str(k) for k in clients])


class Split(NamedTuple):
    """Rows of every client in one table.  rows [K, N], padded with a real row; counts [K]: how many are real."""

    rows: Any
    counts: Any


class Federation(NamedTuple):
    """The clients' rows, and which client holds which.  NumPy arrays (to be shared) or tensors (to be used).

    x [R, …], y [R]: each row that some client holds, once, so 10,000 clients need no padding.
    row [R]          the row's number in the data set, a NumPy array; None if the rows do not come from a data set.
    owners           for each client the names of its rows' owners; () if clients have no names.
    class_names      of class 0, 1, …; () if classes are named by their numbers.
    """

    x: Any
    y: Any
    classes: int
    train: Split
    val: Split
    test: Split
    row: Any = None
    owners: Owners = ()
    class_names: tuple[str, ...] = ()

    @property
    def clients(self) -> int:
        """K, the number of clients."""
        return len(self.train.counts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row: channels, height, width of an image; the features of a vector; the length of tokens."""
        return tuple(self.x.shape[1:])

    def owner(self, client: int) -> str:
        """The owner of a client's rows: "clinic-07", or for a group "clinic-02 + clinic-07"; "" if it has no name."""
        return owner_of(self.owners, client)

    def who(self, client: int) -> str:
        """A client for messages: "owner clinic-07", or "client 3" if it has no name."""
        return in_words(self.owners, client)

    def some(self, clients: Sequence[int]) -> str:
        """The first of these clients for messages: their names, or their numbers if they have none."""
        return some(self.owners, clients)

    def to(self, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Federation:
        """The federation as tensors on a device; on a CPU in float32 they share the arrays' memory."""

        def tensor(a: Any) -> Tensor:
            with warnings.catch_warnings():
                # arrays from Ray's object store are read-only; nobody writes to them
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                t = torch.as_tensor(a)
            return t.to(device, dtype if t.is_floating_point() else t.dtype)

        splits = (Split(tensor(s.rows), tensor(s.counts)) for s in (self.train, self.val, self.test))
        x, y, (train, val, test) = tensor(self.x), tensor(self.y), splits
        return self._replace(x=x, y=y, train=train, val=val, test=test)


def of_all_classes(f: Federation, rows: int, generator: torch.Generator) -> Split:
    """About `rows` test rows, as many of each class, drawn from what all clients hold: the same for every client.

    f holds tensors.  A class that nobody tests on is left out; one with fewer rows than its share gives what it has.
    """
    real = torch.arange(f.test.rows.shape[1]) < f.test.counts.cpu()[:, None]
    rows_held = f.test.rows.cpu()[real]
    rows_held = rows_held[torch.randperm(len(rows_held), generator=generator)]
    y = f.y.cpu()[rows_held]
    share = max(1, rows // f.classes)
    rows_chosen = torch.cat([rows_held[y == c][:share] for c in range(f.classes)]).to(f.x.device)
    return Split(rows_chosen.expand(f.clients, -1), torch.full_like(f.test.counts, len(rows_chosen)))


def rows_by_class(f: Federation, ids: Tensor | slice = slice(None)) -> Tensor:
    """How many training rows of each class these clients have, [m, C]; f holds tensors."""
    rows, counts = f.train.rows[ids], f.train.counts[ids]
    real = torch.arange(rows.shape[1], device=counts.device) < counts[:, None]
    zeros = torch.zeros(len(rows), f.classes, dtype=torch.int64, device=f.y.device)
    y = f.y[rows]
    valid = (y >= 0) & (y < f.classes)  # another class is an error in training
    return zeros.scatter_add_(1, torch.where(valid, y, 0), (real & valid).to(zeros))


def classes_held(f: Federation) -> Tensor:
    """Which classes each client has training rows of, [K, C] bool; f holds tensors."""
    return rows_by_class(f) > 0


def joined(federations: Sequence[Federation]) -> Federation:
    """Concatenate several federations of one data set, clients in order.  They hold tensors."""
    x, y = (torch.cat([getattr(f, name) for f in federations]) for name in ("x", "y"))
    sizes = [len(f.x) for f in federations]
    train, val, test = (joined_split([getattr(f, n) for f in federations], sizes) for n in ("train", "val", "test"))
    rows = [f.row for f in federations]
    row = None if any(r is None for r in rows) else np.concatenate(rows)
    have_names = all(f.owners for f in federations)  # clients of only some federations may equal owners by chance
    owners = tuple(names for f in federations for names in f.owners) if have_names else ()
    return federations[0]._replace(x=x, y=y, train=train, val=val, test=test, row=row, owners=owners)


def joined_split(splits: Sequence[Split], sizes: Sequence[int]) -> Split:
    """Concatenate tables of several federations whose rows are concatenated.  sizes: rows of each federation."""
    longest, tables, offset = max(s.rows.shape[1] for s in splits), [], 0
    for s, size in zip(splits, sizes, strict=True):
        padding = s.rows[:, :1].expand(-1, longest - s.rows.shape[1])
        tables.append(torch.cat([s.rows, padding], 1) + offset)
        offset += size
    return Split(torch.cat(tables), torch.cat([s.counts for s in splits]))


def partitioned(
    data: Dataset, rows: np.ndarray, parts: Partition, first_class: int = 0, owners: Owners = ()
) -> Federation:
    """The federation of a loaded data set whose rows are given to clients.

    rows   rows of the data set; parts hold places in it.      first_class   the class that is renumbered to 0.
    owners   of each client, from `owners_of`.
    """
    places = np.unique(np.concatenate([rows_of for split in parts for rows_of in split]))
    train, val, test = (_table([np.searchsorted(places, rows_of) for rows_of in split]) for split in parts)
    original = rows[places]
    x, y, names = data.x[original], data.y[original] - first_class, data.class_names[first_class:]
    return Federation(
        x=x, y=y, classes=data.classes, train=train, val=val, test=test, row=original, owners=owners, class_names=names
    )


def owners_of(data: Dataset, rows: np.ndarray, parts: Partition) -> Owners:
    """The names of the owners of each client's rows, in the data set's order.

    () if the data set has no owners, or if clients do not correspond to owners: a client with rows of several owners
    shares one of them with another client.
    """
    if data.owner is None:
        return ()
    clients = len(parts.train)
    client = np.concatenate([np.repeat(np.arange(clients), [len(rows_of) for rows_of in split]) for split in parts])
    owner = data.owner[rows[np.concatenate([rows_of for split in parts for rows_of in split])]]
    people, number = np.unique(owner, return_inverse=True)
    client, number = np.divmod(np.unique(client * len(people) + number), len(people))  # each pair once
    several = np.bincount(client, minlength=clients)[client] > 1
    if (several & (np.bincount(number)[number] > 1)).any():
        return ()
    names = [data.owner_names[p] if data.owner_names else str(p) for p in people.tolist()]
    result: list[list[str]] = [[] for _ in range(clients)]
    for k, n in zip(client.tolist(), number.tolist(), strict=True):
        result[k].append(names[n])
    return tuple(map(tuple, result))


def _table(rows: list[np.ndarray]) -> Split:
    counts = np.array([len(r) for r in rows])
    real = np.arange(counts.max()) < counts[:, None]
    table = np.repeat(np.array([r[0] for r in rows])[:, None], counts.max(), axis=1)
    table[real] = np.concatenate(rows)
    return Split(table, counts)
