"""What partitions demand of the data; a UserError says which rule was broken and what would do.

`Scenario` has checked all that its fields say by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several

MIN_ROWS = 3  # rows per client: one each for training, validation and test


def ways_exist(ways: int, classes: int) -> None:
    """UserError unless a client can hold this many classes."""
    if ways > classes:
        raise UserError(f"ways is {ways}, but the data set has {several(classes, 'class')}: give {classes} or fewer")


def fits(rows: int, clients: int, floor: int) -> None:
    """UserError unless there are enough rows for the clients."""
    if clients * floor > rows:
        raise UserError(
            f"{several(clients, 'client')} with at least {several(floor, 'row')} each need {clients * floor} rows, "
            f"but there are {rows}: "
            f"take {several(rows // floor, 'client')} or fewer"
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
