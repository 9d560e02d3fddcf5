"""Assign rows to clients class by class, fill clients up to a floor, and split rows into train, val and test.

What the data cannot give is refused by `fits` and `enough_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several

MIN_ROWS = 3  # rows per client: one each for training, validation and test


class Partition(NamedTuple):
    """Row numbers of the data set, one int64 array per client; no row occurs twice."""

    train: list[np.ndarray]
    val: list[np.ndarray]
    test: list[np.ndarray]


class Held(NamedTuple):
    """Rows in random order, and the client of each, int64."""

    rows: np.ndarray
    client: np.ndarray


def pools(y: np.ndarray, train_rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the official training and test set; without a test set, a sixth of each class is set aside."""
    if train_rows < len(y):
        return np.arange(train_rows), np.arange(train_rows, len(y))
    order = rng.permutation(len(y))
    classes = int(y.max()) + 1
    aside = place_within_client(y[order], classes) < (np.bincount(y) // 6)[y[order]]
    return order[~aside], order[aside]


def blocks(y: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Assign each class, in random order, in consecutive blocks of sizes [clients, classes] rows.

    Returns row number, client and place within the block for every assigned row, class by class.
    """
    rows = rng.permutation(len(y))
    rows = rows[np.argsort(y[rows], kind="stable")]
    clients, classes = sizes.shape
    first = np.searchsorted(y[rows], np.arange(classes))
    begin = (first + sizes.cumsum(0) - sizes).T.ravel()  # [classes * clients]
    length = sizes.T.ravel()
    owner = np.repeat(np.tile(np.arange(clients), classes), length)
    place = np.arange(len(owner)) - np.repeat(length.cumsum() - length, length)
    return rows[np.repeat(begin, length) + place], owner, place


def raise_to(floor: int, owner: np.ndarray, clients: int) -> np.ndarray:
    """The owner of every row (in random order) after the largest clients gave rows to clients below the floor."""
    size = np.bincount(owner, minlength=clients)
    missing = np.maximum(floor - size, 0)
    holders = np.bincount(size)[::-1].cumsum()[::-1]  # clients with at least 0, 1, 2, ... rows
    above = holders[::-1].cumsum()[::-1] - holders  # rows the clients hold above 0, 1, 2, ... each
    level = np.argmax(above <= missing.sum())  # the largest clients shrink to this size, the first few by one row more
    give = np.maximum(size - level, 0)
    give[np.flatnonzero(size >= level)[: missing.sum() - give.sum()]] += 1
    owner = owner.copy()
    owner[place_within_client(owner, clients) < give[owner]] = np.repeat(np.arange(clients), missing)
    return owner


def place_within_client(owner: np.ndarray, clients: int) -> np.ndarray:
    """For every row, the number of earlier rows of the same client."""
    size = np.bincount(owner, minlength=clients)
    place = np.empty_like(owner)
    place[np.argsort(owner, kind="stable")] = np.arange(len(owner)) - np.repeat(size.cumsum() - size, size)
    return place


def split(held: Held, clients: int, val_share: float, test_share: float) -> Partition:
    """Each client's rows into train, validation and test, none empty: these shares of them, rounded."""
    rows, owner = held
    size = np.bincount(owner, minlength=clients)
    val = np.clip(np.rint(size * val_share).astype(np.int64), 1, size - 2)
    test = np.clip(np.rint(size * test_share).astype(np.int64), 1, size - 1 - val)
    place = place_within_client(owner, clients)
    role = (place < (val + test)[owner]).astype(np.int64) + (place < test[owner])
    return collect(rows, owner, role, clients)


def collect(
    rows: np.ndarray, owner: np.ndarray, role: np.ndarray, clients: int, test: tuple[np.ndarray, ...] = ()
) -> Partition:
    """Group rows by client and role (0 train, 1 validation, 2 test).  test: more test rows, and their clients."""
    if test:
        rows, owner = np.concatenate([rows, test[0]]), np.concatenate([owner, test[1]])
        role = np.concatenate([role, np.full(len(test[0]), 2)])
    key = 3 * owner + role
    size = np.bincount(key, minlength=3 * clients)
    parts = np.split(rows[np.argsort(key, kind="stable")], size.cumsum()[:-1])
    return Partition(parts[0::3], parts[1::3], parts[2::3])


def by_split(parts: Partition, split: np.ndarray, val_share: float, rng: np.random.Generator) -> Partition:
    """Give every client the same rows, in the splits that the data set defines."""
    clients = len(parts.train)
    rows = np.concatenate([rows_of for part in parts for rows_of in part])
    owner = np.concatenate([np.repeat(np.arange(clients), [len(rows_of) for rows_of in part]) for part in parts])
    order = rng.permutation(len(rows))
    rows, owner = rows[order], owner[order]
    role = split[rows]
    if not (split == 1).any():
        train = np.flatnonzero(role == 0)
        role[train] = validation_role(owner[train], clients, val_share)
    return collect(rows, owner, role, clients)


def validation_role(owner: np.ndarray, clients: int, val_share: float) -> np.ndarray:
    """1 for validation rows, a share of a client's rounded, and 0 for training rows; of two rows or more, one each."""
    size = np.bincount(owner, minlength=clients)
    val = np.clip(np.rint(size * val_share).astype(np.int64), np.minimum(1, size), np.maximum(size - 1, 0))
    return (place_within_client(owner, clients) < val[owner]).astype(np.int64)


def fits(rows: int, clients: int, floor: int, advice: str = "") -> None:
    """UserError unless there are enough rows for the clients.  advice: in place of the number of clients that fit."""
    if clients * floor > rows:
        advice = advice or f"{several(rows // floor, 'client')} or fewer"
        raise UserError(
            f"{several(clients, 'client')} with at least {several(floor, 'row')} each need {clients * floor} rows, "
            f"but there are {rows}: take {advice}"
        )


def enough_rows(size: np.ndarray, whose: Callable[[int], str], clients: np.ndarray | int = 1) -> None:
    """UserError with the names of owners that have fewer rows than their clients need.

    size [n]: rows of each owner or group of owners.  whose: their names.  clients: how many clients share each of them.
    """
    clients = np.broadcast_to(clients, size.shape)
    if lacking := np.flatnonzero(size < MIN_ROWS * clients).tolist():
        counts = [(whose(i), several(int(size[i]), "row"), several(int(clients[i]), "client")) for i in lacking]
        texts = [f"{name} with {rows} for {shared}" for name, rows, shared in counts]
        raise UserError(
            f"a client needs {MIN_ROWS} rows, but owners have fewer: {few(texts)}; take fewer clients, or merge or "
            f"drop such owners (--min-rows {MIN_ROWS * clients[lacking].max()})"
        )


def rounded_down(number: float | np.ndarray) -> np.ndarray:
    """A product rounded down, with a tolerance so that 0.57 * 100 gives 57."""
    return np.floor(np.asarray(number) + 1e-9).astype(np.int64)


def attempts(limit: int, clients: int, classes: int) -> int:
    """How often to redraw: fewer times for many clients, so that it takes less than a second."""
    return max(5, min(limit, 1_500_000 // (clients * classes)))
