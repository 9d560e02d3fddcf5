"""A scenario's data: the data set partitioned over clients by the scenario's partition and the experiment's seed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import numpy as np

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.terminal import say, several
from fedtune.data import assignment, datasets, flwr_partitions, partitions, skews, user_metadata, user_rows
from fedtune.data.assignment import Held, Partition, by_split
from fedtune.data.dataset import PICTURES
from fedtune.data.datasets import Dataset
from fedtune.data.federation import Federation, Owners, in_words, owners_of, partitioned, some
from fedtune.data.shifts import shifted
from fedtune.experiment.rows_in_play import last_group, left_out, rows_in_play
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures
from fedtune.user_code import user_files

TEST = 2  # marks test rows in a data set's split
OFFICIAL = ("ways-shots", "fedgen")  # partitions that draw validation rows themselves, from official training rows


def make(scenario: Scenario, seed: int, data_dir: str | None = None, download: bool = False) -> Federation:
    """Load, partition and normalise the data; note rows left out.  The partition's stream is (seed, "partition")."""
    data = datasets.load(scenario.dataset, data_dir, download)
    report(data, scenario, seed)
    return partition(data, scenario, seed)


def partition(data: Dataset, scenario: Scenario, seed: int) -> Federation:
    """Partition a loaded data set as the scenario says; UserError if that is impossible."""
    rows, parts, owners = _rows_and_parts(data, scenario, seed)
    if scenario.image_size and data.kind == PICTURES:
        data = data._replace(x=data.x.sized(scenario.image_size))  # type: ignore[union-attr]
    federation = partitioned(data, rows, parts, scenario.skip_classes, owners)
    if data.raw:
        from fedtune.data.normalising import prepared

        shape = np.asarray(federation.x).shape[1:]
        kind = data.kind if data.kind == PICTURES else user_rows.resolved(data.name, data.kind, shape, scenario.x_as)
        federation = prepared(federation, data.name, kind, scenario.normalise == "train")
    return shifted(federation, scenario, scenario.keep_classes or data.classes - scenario.skip_classes, seed)


def rows_of_clients(data: Dataset, scenario: Scenario, seed: int) -> Partition:
    """Which rows of the data set each client holds, by split; UserError if the partition is impossible."""
    rows, parts, _ = _rows_and_parts(data, scenario, seed)
    return Partition(*([rows[places] for places in split] for split in parts))


def report(data: Dataset, scenario: Scenario, seed: int) -> None:
    """Print a note of a model whose start no seed changes, of rows that no client holds, and of too few owners."""
    *shape, classes = datasets.describe(scenario.dataset, scenario.image_size, scenario.x_as)
    for name in architectures.unseeded(scenario.model, tuple(shape), classes, scenario.features):
        say(f"note: {name} {architectures.UNSEEDED}")
    if not user_metadata.is_own(scenario.dataset):
        return  # a named scenario defines which rows it uses
    rows, parts, owners = _rows_and_parts(data, scenario, seed)
    rows_used = rows[np.concatenate([places for split in parts for places in split])]
    for line in filter(None, (left_out(data, scenario, rows_used), last_group(scenario, owners))):
        say(f"note: {line}")


def require_partitions(data: Dataset, scenario: Scenario, seeds: Iterable[int]) -> None:
    """UserError for a seed on which the data cannot be partitioned."""
    for seed in seeds:
        try:
            _rows_and_parts(data, scenario, seed)
        except UserError as error:
            raise UserError(f"{error} (with seed {seed})") from error


def _rows_and_parts(data: Dataset, scenario: Scenario, seed: int) -> tuple[np.ndarray, Partition, Owners]:
    """The data set's rows to partition, the parts (places in them), and the owners of each client's rows."""
    rows = rows_in_play(data, scenario)
    if user_metadata.is_partition(scenario.partition):
        from fedtune.data import user_partition

        parts = user_partition.partition(scenario.partition, rows, len(data.y))
    else:
        rng = randomness.numpy_stream(seed, "partition")
        if data.split is not None:  # partitions that use official splits need training rows first
            rows = rows[np.argsort(data.split[rows] == TEST, kind="stable")]
        parts = _parts(data, rows, scenario, rng)
        if data.split is not None and scenario.partition not in OFFICIAL:
            parts = by_split(parts, data.split[rows], scenario.val_share, rng)
    owners = owners_of(data, rows, parts)
    _require_each_split(data, scenario, parts, owners)
    return rows, skews.thinned(parts, scenario.thinning, seed), owners


def _require_each_split(data: Dataset, scenario: Scenario, parts: Partition, owners: Owners) -> None:
    """UserError, with the clients' names and what would help, unless each client has rows of every split."""
    lacking: dict[tuple[int, ...], list[str]] = {}  # clients -> the splits that none of them has rows of
    for name, split in parts._asdict().items():
        lacking.setdefault(tuple(k for k, places in enumerate(split) if not len(places)), []).append(name)
    lacking.pop((), None)
    if not lacking:
        return
    clients = " and ".join(f"{_several(owners, parts, ks)} no {' and no '.join(n)} rows" for ks, n in lacking.items())
    source, ways = "", "give fewer clients or more rows"
    if user_metadata.is_partition(scenario.partition):
        source, ways = f" in {user_files.path_of(scenario.partition)}", "merge clients, or leave such clients out"
    elif data.split is not None:
        source = f" by the split of {data.name}"
        ways = "give only owners with rows of each split, or leave the split out (in brackets after a table's name: "
        ways += "split=None), so that each client's rows are divided by --val-share and --test-share"
    raise UserError(f"every client needs training, validation and test rows, but{source} {clients}: {ways}")


def _several(owners: Owners, parts: Partition, clients: tuple[int, ...]) -> str:
    """Clients in words, with "have"; for a single client also its number of rows."""
    if len(clients) > 1:
        return f"{len(clients)} of {len(parts.train)} clients ({some(owners, clients)}) have"
    return f"{in_words(owners, clients[0])}, of {several(sum(len(split[clients[0]]) for split in parts), 'row')}, has"


MAKERS: dict[str, Callable[..., Partition | Held]] = {
    "ways-shots": partitions.ways_shots,
    "dirichlet": partitions.dirichlet,
    "iid": partitions.iid,
    "fedgen": partitions.fedgen,
    "natural": partitions.natural,
    "shards": skews.shards,
    "quantity": skews.quantity,
    "power-law": skews.power_law,
    "domains": skews.domains,
}


def _parts(data: Dataset, rows: np.ndarray, s: Scenario, rng: np.random.Generator) -> Partition:
    """The scenario's partition of these rows; the parts hold places in `rows`, official test rows last.

    What a partition takes besides the rows are the scenario's fields of the same names.
    """
    y, train_rows = data.y[rows] - s.skip_classes, int(np.searchsorted(rows, data.train_rows))
    if data.split is not None:
        train_rows = int((data.split[rows] != TEST).sum())
    owner = None if data.owner is None else data.owner[rows]
    if s.partition in ("natural", "domains"):
        if owner is None:
            raise UserError(
                f"partition {s.partition} needs the owner of each row, but {data.name} has none: use celeba, or "
                "another partition"
            )
        owner = owner[:train_rows] if data.split is None else owner
    of_rows = {
        "y": y,
        "rows": len(y),
        "train_rows": train_rows,
        "total": data.train_rows,  # FedPA's script counts the dropped class too, so the cap is that of all its rows
        "owner": owner,
        "names": data.owner_names,
        "name": s.partition,
        "rng": rng,
    }
    make = flwr_partitions.partition if flwr_partitions.is_named(s.partition) else MAKERS[s.partition]
    parameters = inspect.signature(make).parameters
    found = make(**{name: of_rows[name] if name in of_rows else getattr(s, name) for name in parameters})
    return found if isinstance(found, Partition) else assignment.split(found, s.clients, s.val_share, s.test_share)
