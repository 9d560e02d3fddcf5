"""Partitions by the partitioners of the library flwr-datasets: `flwr:DirichletPartitioner(alpha=0.3)`.

Their arguments are literals.  num_partitions is the number of clients, partition_by the column label (owner for natural
ids), and seed is drawn from the experiment's seed, unless they are given.  All rows are divided, in random order, as
Flower's FederatedDataset shuffles them; a client's rows are then split as under any partition.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any

import numpy as np

from fedtune.core.errors import UserError, shown, unknown
from fedtune.core.terminal import several
from fedtune.data.assignment import Partition, split
from fedtune.data.demands import MIN_ROWS
from fedtune.user_code import references

PREFIX = "flwr:"
LABEL, OWNER, ROW = "label", "owner", "row"  # the columns that partitioners see
CLIENTS, PARTITION_BY, SEED = "num_partitions", "partition_by", "seed"
EXAMPLE = "flwr:DirichletPartitioner(alpha=0.3)"


def is_named(name: str) -> bool:
    """Whether a partition is one of flwr-datasets."""
    return name.startswith(PREFIX)


def canonical(name: str) -> str:
    """The name with its arguments in one form; UserError unless they are keyword literals."""
    partitioner, arguments = _parsed(name)
    return f"{PREFIX}{partitioner}({','.join(f'{n}={v!r}' for n, v in arguments.items())})"


def clients(name: str) -> int | None:
    """The number of clients that the arguments give, if they do."""
    _, arguments = _parsed(name)
    sizes = arguments.get("partition_sizes")
    return len(sizes) if isinstance(sizes, list | tuple) and sizes else arguments.get(CLIENTS)


def require(name: str) -> None:
    """UserError unless the library is installed, has this partitioner, and it has these arguments."""
    _maker(name)


def partition(
    name: str,
    y: np.ndarray,
    owner: np.ndarray | None,
    clients: int,
    val_share: float,
    test_share: float,
    rng: np.random.Generator,
) -> Partition:
    """Divide all rows; UserError if the partitioner cannot, or gives a client fewer than three rows.

    y, owner: of each row; owner None if it is unknown.
    """
    make, arguments = _maker(name)
    parameters = inspect.signature(make).parameters
    defaults = {CLIENTS: clients, PARTITION_BY: OWNER if "NaturalId" in name else LABEL, SEED: int(rng.integers(2**31))}
    order = (np.random.default_rng(arguments[SEED]) if arguments.get(SEED) is not None else rng).permutation(len(y))
    arguments = {n: v for n, v in defaults.items() if n in parameters} | arguments
    _require_column(name, arguments.get(PARTITION_BY), owner is not None)
    columns = {ROW: order, LABEL: y[order]} | ({} if owner is None else {OWNER: owner[order]})
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # its progress bars
            warnings.simplefilter("ignore")
            rows_by_client = _divided(make, arguments, columns, clients)
    except UserError:
        raise
    except Exception as error:  # whatever the library raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} cannot divide {several(len(y), 'row')}: {reason[:300]}") from error
    return _assigned(name, rows_by_client, val_share, test_share, rng)


def _divided(
    make: Any, arguments: Mapping[str, Any], columns: Mapping[str, np.ndarray], clients: int
) -> list[np.ndarray]:
    """The rows of each client."""
    from datasets import Dataset

    partitioner = make(**arguments)
    partitioner.dataset = Dataset.from_dict(dict(columns))
    partitions = partitioner.num_partitions
    if partitions != clients:
        raise UserError(
            f"this partition has {several(partitions, 'client')}, but clients is {clients}; give --clients {partitions}"
        )
    return [np.asarray(partitioner.load_partition(k)[ROW][:], np.int64) for k in range(clients)]


def _assigned(
    name: str, rows_by_client: list[np.ndarray], val_share: float, test_share: float, rng: np.random.Generator
) -> Partition:
    """Each client's rows in three splits."""
    sizes = np.array([len(rows) for rows in rows_by_client])
    if (sizes < MIN_ROWS).any():
        k = int(sizes.argmin())
        raise UserError(
            f"{name} gives client {k} {several(int(sizes[k]), 'row')}, and a client needs {MIN_ROWS}: give other "
            "arguments, for example min_partition_size, or fewer clients"
        )
    rows, owner = np.concatenate(rows_by_client), np.repeat(np.arange(len(rows_by_client)), sizes)
    if len(np.unique(rows)) < len(rows):
        raise UserError(f"{name} gives one row to two clients, which is not possible here; give other arguments")
    order = rng.permutation(len(rows))
    return split(rows[order], owner[order], len(rows_by_client), val_share, test_share)


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """The partitioner's name and its arguments."""
    kind, arguments = references.called(name.removeprefix(PREFIX))
    if not kind.isidentifier():
        raise UserError(f"a partition of flwr-datasets is called as {EXAMPLE}, but got {name!r}")
    clients = arguments.get(CLIENTS, 1)
    if isinstance(clients, bool) or not isinstance(clients, int) or clients < 1:
        raise UserError(f"{CLIENTS} of {name} must be a whole number from 1 on, but got {shown(clients)}")
    seed = arguments.get(SEED)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32):
        raise UserError(f"{SEED} of {name} must be a whole number from 0 on, but got {shown(seed)}")
    return kind, arguments


def _maker(name: str) -> tuple[Any, dict[str, Any]]:
    """The partitioner's class, and its arguments."""
    kind, arguments = _parsed(name)
    try:
        from flwr_datasets import partitioner as library
    except ImportError as error:
        raise UserError(
            f"{name} needs the library flwr-datasets, which is not installed; install it: pip install 'fedtune[flwr]'"
        ) from error
    known = {n: getattr(library, n) for n in library.__all__ if n != "Partitioner" and not n.startswith("Vertical")}
    if kind not in known:  # those that are called Vertical… divide columns, not rows
        raise unknown("partitioner of flwr-datasets", kind, known)
    parameters = inspect.signature(known[kind]).parameters
    for argument in arguments:
        if argument not in parameters:
            raise unknown(f"argument of {kind}", argument, parameters)
    filled_in = {CLIENTS, PARTITION_BY, SEED, *arguments}
    if lacking := [n for n, p in parameters.items() if p.default is p.empty and n not in filled_in]:
        raise UserError(f"{kind} needs {lacking[0]}, as in {PREFIX}{kind}({lacking[0]}=…), but got {name!r}")
    for argument, value in arguments.items():
        if isinstance(value, list) and "NDArray" in str(parameters[argument].annotation):
            arguments[argument] = np.array(value)
    return known[kind], arguments


def _require_column(name: str, key: Any, owners: bool) -> None:
    names = (LABEL, OWNER) if owners else (LABEL,)
    if key is not None and key not in names:
        end = ", and the data set has no owners" if not owners else ""
        raise UserError(f"{PARTITION_BY} of {name} must be {' or '.join(map(repr, names))}{end}, but got {shown(key)}")
