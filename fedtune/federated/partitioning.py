"""A scenario's data: the data set partitioned among its clients, by the scenario's law and the experiment's seed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.data import datasets, own_partition, partitions, skews
from fedtune.data.assignment import Partition, by_split
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation, owners_of, partitioned
from fedtune.data.normalising import standardised
from fedtune.data.own_pictures import OwnPictures
from fedtune.data.shifts import Shifts, shifted
from fedtune.federated.scenario import Scenario

TEST = 2  # in a data set's own split
OFFICIAL = ("ways-shots", "fedgen")  # laws that draw validation rows themselves, from official training rows


def make(scenario: Scenario, seed: int, data_dir: str | None = None, download: bool = False) -> Federation:
    """Load, normalise and partition.  The partition's stream is its own: (seed, "partition")."""
    data = datasets.load(scenario.dataset, data_dir, download)
    return partition(data, scenario, seed)


def partition(data: Dataset, scenario: Scenario, seed: int) -> Federation:
    """Partition a loaded data set as the scenario says; UserError if that is impossible."""
    rows, parts, owners = _rows_and_parts(data, scenario, seed)
    if scenario.image_size and isinstance(data.x, OwnPictures):
        data = data._replace(x=data.x.sized(scenario.image_size))
    made = partitioned(data, rows, parts, scenario.skip_classes, owners)
    if data.raw and scenario.normalise == "train":
        made = standardised(made)
    shifts = Shifts(**{name: getattr(scenario, name) for name in Shifts._fields})
    return shifted(made, shifts, scenario.keep_classes or data.classes - scenario.skip_classes, seed)


def rows_of_clients(data: Dataset, scenario: Scenario, seed: int) -> Partition:
    """Who holds which rows of the data set, and what for; UserError if that is impossible."""
    rows, parts, _ = _rows_and_parts(data, scenario, seed)
    return Partition(*([rows[held] for held in split] for split in parts))


def require_partitions(data: Dataset, scenario: Scenario, seeds: Iterable[int]) -> None:
    """UserError for a seed on which the data cannot be partitioned; on others they may well be."""
    for seed in seeds:
        try:
            _rows_and_parts(data, scenario, seed)
        except UserError as error:
            raise UserError(f"{error} (this is of seed {seed})") from error


def _rows_and_parts(
    data: Dataset, scenario: Scenario, seed: int
) -> tuple[np.ndarray, Partition, tuple[tuple[str, ...], ...]]:
    """The rows of the data set that are partitioned, the parts (places in them), and whose rows each client holds."""
    end = scenario.skip_classes + (scenario.keep_classes or data.classes)
    rows = np.flatnonzero((data.y >= scenario.skip_classes) & (data.y < end))  # all, mostly
    if own_partition.is_own(scenario.partition):
        parts = own_partition.partition(scenario.partition, rows, len(data.y))
    else:
        rng = randomness.numpy_stream(seed, "partition")
        if data.split is not None:  # the laws of official training and test rows want the former first
            rows = rows[np.argsort(data.split[rows] == TEST, kind="stable")]
        parts = _parts(data, rows, scenario, rng)
        if data.split is not None and scenario.partition not in OFFICIAL:
            parts = by_split(parts, data.split[rows], scenario.val_share, rng)
    for name, split in zip(parts._fields, parts, strict=True):
        if missing := [k for k, held in enumerate(split) if len(held) == 0]:
            raise UserError(
                f"every client needs training, validation and test rows, but client {missing[0]} has no {name} rows"
                + (f" by the split of {data.name}" if data.split is not None else "")
                + "; give fewer clients or more rows"
            )
    return rows, skews.thinned(parts, scenario.thinning, seed), owners_of(data, rows, parts)


def _parts(data: Dataset, rows: np.ndarray, s: Scenario, rng: np.random.Generator) -> Partition:
    """The scenario's law on these rows of the data set; the parts hold places in `rows`, official test rows last."""
    y, train_rows = data.y[rows] - s.skip_classes, int(np.searchsorted(rows, data.train_rows))
    if data.split is not None:
        train_rows = int((data.split[rows] != TEST).sum())
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
    if s.partition in ("natural", "domains"):
        if data.owner is None:
            raise UserError(
                f"partition {s.partition} needs to know whose each row is, but {data.name} does not tell: take celeba, "
                "or another partition"
            )
        owner = data.owner[rows[:train_rows] if data.split is None else rows]
        if s.partition == "domains":
            return skews.domains(owner, s.clients, s.val_share, s.test_share, rng)
        return partitions.natural(owner, s.clients, s.owners, s.share, s.val_share, s.test_share, rng)
    if s.partition == "shards":
        return skews.shards(y, s.clients, s.shards, s.val_share, s.test_share, rng)
    if s.partition == "quantity":
        return skews.quantity(len(y), s.clients, s.alpha, s.floor, s.val_share, s.test_share, rng)
    if s.partition == "power-law":
        return skews.power_law(len(y), s.clients, s.power, s.floor, s.val_share, s.test_share, rng)
    return partitions.iid(y, s.clients, s.val_share, s.test_share, rng)
