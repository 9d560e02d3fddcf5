"""A data set dealt out to clients: made once per search, shared by all trials, put on a device by each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.data import datasets, partitions
from fedtune.federated.scenario import Scenario


class Split(NamedTuple):
    """Rows of every client, in one table.  rows [K, N], padded with a real row; counts [K] says how many are real."""

    rows: Any
    counts: Any


class Federation(NamedTuple):
    """The rows that the clients hold and who holds which.  Arrays of numpy (to be shared) or tensors (to be used).

    x [R, channels, height, width], y [R]: only rows that somebody holds, each once, so 10,000 clients cost no padding.
    """

    x: Any
    y: Any
    classes: int
    train: Split
    val: Split
    test: Split

    @property
    def clients(self) -> int:
        """K."""
        return len(self.train.counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of an image."""
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


def make(scenario: Scenario, seed: int, data_dir: str | None = None, download: bool = False) -> Federation:
    """Load, normalise and partition.  The partition's stream is its own: (seed, "partition")."""
    data = datasets.load(scenario.dataset, data_dir, download)
    return deal(data, scenario, seed)


def deal(data: datasets.Dataset, scenario: Scenario, seed: int) -> Federation:
    """Partition a loaded data set as the scenario says; UserError if that is impossible."""
    rows, parts = _divided(data, scenario, seed)
    held = np.unique(np.concatenate([one for split in parts for one in split]))
    splits = (_table([np.searchsorted(held, one) for one in split]) for split in parts)
    original = rows[held]
    return Federation(data.x[original], data.y[original] - scenario.skip_classes, data.classes, *splits)


def require_deals(data: datasets.Dataset, scenario: Scenario, seeds: Iterable[int]) -> None:
    """UserError for a seed on which the data cannot be dealt out: on others they may be."""
    for seed in seeds:
        try:
            _divided(data, scenario, seed)
        except UserError as error:
            raise UserError(f"{error} (this is of seed {seed})") from error


def _divided(data: datasets.Dataset, scenario: Scenario, seed: int) -> tuple[np.ndarray, partitions.Partition]:
    """The rows of the data set that are dealt out, and the parts: places in them."""
    rows = np.flatnonzero(data.y >= scenario.skip_classes)  # all, mostly
    parts = _partition(data, rows, scenario, randomness.numpy_stream(seed, "partition"))
    if any(len(held) == 0 for split in parts for held in split):
        raise UserError("every client needs training, validation and test rows; give fewer clients or more rows")
    return rows, parts


def _partition(data: datasets.Dataset, rows: np.ndarray, s: Scenario, rng: np.random.Generator) -> partitions.Partition:
    """The scenario's law on these rows of the data set (ascending); the parts hold places in `rows`."""
    y, train_rows = data.y[rows] - s.skip_classes, int(np.searchsorted(rows, data.train_rows))
    if s.partition == "ways-shots":
        return partitions.ways_shots(
            y, train_rows, s.clients, s.ways, s.ways_spread, s.shots, s.shots_spread, s.val_shots, s.test_shots, rng
        )
    if s.partition == "dirichlet":
        return partitions.dirichlet(y, s.clients, s.alpha, s.floor, s.val_share, s.test_share, rng)
    if s.partition == "fedgen":
        # FedPA's script counts the class that it drops in N, so the cap is that of the whole data set
        n = data.train_rows
        return partitions.fedgen(y, train_rows, n, s.clients, s.alpha, s.share, s.floor, s.val_share, rng)
    if s.partition == "natural":
        if data.owner is None:
            raise UserError(
                f"partition natural needs to know whose each row is, but {data.name} does not tell: take celeba, or "
                "another partition"
            )
        owner = data.owner[rows[:train_rows]]
        return partitions.natural(owner, s.clients, s.owners, s.share, s.val_share, s.test_share, rng)
    return partitions.iid(y, s.clients, s.val_share, s.test_share, rng)


def _table(rows: list[np.ndarray]) -> Split:
    counts = np.array([len(r) for r in rows])
    real = np.arange(counts.max()) < counts[:, None]
    table = np.repeat(np.array([r[0] for r in rows])[:, None], counts.max(), axis=1)
    table[real] = np.concatenate(rows)
    return Split(table, counts)
