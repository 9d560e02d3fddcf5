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

from fedtune.core.errors import UserError, require_known, shown
from fedtune.core.terminal import several
from fedtune.data.assignment import MIN_ROWS, Held
from fedtune.user_code import references

PREFIX = "flwr:"
LABEL, OWNER, ROW = "label", "owner", "row"  # the columns that partitioners see
CLIENTS, PARTITION_BY, SEED = "num_partitions", "partition_by", "seed"


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


def partition(name: str, y: np.ndarray, owner: np.ndarray | None, clients: int, rng: np.random.Generator) -> Held:
    """Divide all rows; UserError if the partitioner cannot, or gives a client fewer than three rows.

    y, owner: of each row; owner None if it is unknown.
    """
    make, arguments = _maker(name)
    parameters = inspect.signature(make).parameters
    defaults = {CLIENTS: clients, PARTITION_BY: OWNER if "NaturalId" in name else LABEL, SEED: int(rng.integers(2**31))}
    order = (np.random.default_rng(arguments[SEED]) if arguments.get(SEED) is not None else rng).permutation(len(y))
    arguments = {n: v for n, v in defaults.items() if n in parameters} | arguments
    columns = {ROW: order, LABEL: y[order]} | ({} if owner is None else {OWNER: owner[order]})
    if (key := arguments.get(PARTITION_BY)) is not None and key not in [n for n in columns if n != ROW]:
        known = " or ".join(map(repr, [*columns][1:]))
        raise UserError(f"{PARTITION_BY} of {name} must be {known}, as the data have it, but got {shown(key)}")
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # its progress bars
            warnings.simplefilter("ignore")
            rows_by_client = _divided(make, arguments, columns)
    except Exception as error:  # whatever the library raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} cannot divide {several(len(y), 'row')}: {reason[:300]}") from error
    if len(rows_by_client) != clients:
        raise UserError(
            f"{name} has {several(len(rows_by_client), 'client')}, but clients is {clients}; give --clients "
            f"{len(rows_by_client)}"
        )
    rows, sizes = np.concatenate(rows_by_client), np.array(list(map(len, rows_by_client)))
    if sizes.min() < MIN_ROWS or len(np.unique(rows)) < len(rows):
        raise UserError(
            f"every client needs {MIN_ROWS} rows that no other has, but {name} gives client {sizes.argmin()} "
            f"{several(int(sizes.min()), 'row')}, and {several(len(rows) - len(np.unique(rows)), 'row')} twice: give "
            "other arguments, for example min_partition_size, or fewer clients"
        )
    held = np.repeat(np.arange(clients), sizes)
    order = rng.permutation(len(rows))
    return Held(rows[order], held[order])


def _divided(make: Any, arguments: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The rows of each client."""
    from datasets import Dataset

    partitioner = make(**arguments)
    partitioner.dataset = Dataset.from_dict(dict(columns))
    partitions = range(partitioner.num_partitions)
    return [np.asarray(partitioner.load_partition(k)[ROW][:], np.int64) for k in partitions]


def _parsed(name: str) -> tuple[str, dict[str, Any]]:
    """The partitioner's name and its arguments."""
    kind, arguments = references.called(name.removeprefix(PREFIX))
    if not kind.isidentifier():
        raise UserError(f"give a partition as in flwr:DirichletPartitioner(alpha=0.3), but got {name!r}")
    for argument, least in ((CLIENTS, 1), (SEED, 0)):
        value = arguments.get(argument)
        if value is not None and (type(value) is not int or not least <= value < 2**32):
            raise UserError(f"{argument} of {name} must be a whole number from {least} on, but got {shown(value)}")
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
    require_known("partitioner of flwr-datasets", [kind], known)  # those called Vertical… divide columns, not rows
    parameters = inspect.signature(known[kind]).parameters
    require_known(f"argument of {kind}", arguments, parameters)
    filled_in = {CLIENTS, PARTITION_BY, SEED, *arguments}
    if lacking := [n for n, p in parameters.items() if p.default is p.empty and n not in filled_in]:
        raise UserError(f"{kind} needs {lacking[0]}, as in {PREFIX}{kind}({lacking[0]}=…), but got {name!r}")
    for argument, value in arguments.items():
        if isinstance(value, list) and "NDArray" in str(parameters[argument].annotation):
            arguments[argument] = np.array(value)
    return known[kind], arguments
