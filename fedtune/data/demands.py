"""Checks of the parameters of partitions; a UserError says which rule was broken and what would do."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import few, several

MIN_ROWS = 3  # rows per client: one each for training, validation and test


def at_least(lowest: int, **numbers: int) -> None:
    """UserError unless each of these numbers is at least `lowest`."""
    for name, number in numbers.items():
        if number < lowest:
            raise UserError(f"{name} must be {lowest} or more, but is {number}")


def ways_exist(ways: int, classes: int) -> None:
    """UserError unless a client can hold this many classes."""
    at_least(min(2, classes), ways=ways)
    if ways > classes:
        raise UserError(f"ways is {ways}, but the data set has {several(classes, 'class')}: give {classes} or fewer")


def positive_alpha(alpha: float) -> None:
    """UserError unless alpha is a valid Dirichlet concentration."""
    if not (alpha > 0 and math.isfinite(alpha)):
        raise UserError(f"alpha must be a positive number, but is {alpha}: give for example 0.1 (skewed) or 100 (iid)")


def a_share(share: float) -> None:
    """UserError unless the share is in (0, 1]."""
    if not 0 < share <= 1:
        raise UserError(f"share must be in (0, 1], but is {share}: give for example 0.5, or 1 for all")


def fits(rows: int, clients: int, floor: int, val_share: float, test_share: float) -> None:
    """UserError unless there are enough rows for the clients, and the shares leave training rows."""
    at_least(1, clients=clients)
    if clients * floor > rows:
        raise UserError(
            f"{several(clients, 'client')} with at least {several(floor, 'row')} each need {clients * floor} rows, "
            f"but there are {rows}: "
            f"take {several(rows // floor, 'client')} or fewer"
        )
    shares_leave_rows(val_share, test_share)


def enough_rows(size: np.ndarray, whose: Callable[[int], list[str]], clients: np.ndarray | int = 1) -> None:
    """UserError with the names of owners that have fewer rows than their clients need.

    size [n]: rows of each owner or group of owners.  whose: their names.  clients: how many clients share each of them.
    """
    clients = np.broadcast_to(clients, size.shape)
    lacking = np.flatnonzero(size < MIN_ROWS * clients).tolist()
    if not lacking:
        return
    texts = []
    for i in lacking:
        names, clause = whose(i), f" for {clients[i]} clients" if clients[i] > 1 else ""
        texts.append(
            f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} {several(int(size[i]), 'row')}{clause}"
        )
    is_single = len(lacking) == len(whose(lacking[0])) == 1
    raise UserError(
        f"owner{'' if is_single else 's'} {few(texts)}, and a client needs {MIN_ROWS}: "
        + ("take fewer clients, or " if (clients[lacking] > 1).any() else "")
        + f"merge or drop {'it' if is_single else 'them'} (--min-rows {MIN_ROWS * clients[lacking].max()})"
    )


def leaves_rows(val_share: float) -> None:
    """UserError unless the share leaves training rows."""
    if not 0 < val_share < 1:
        raise UserError(f"val_share must be above 0 and leave training rows, but is {val_share}: give for example 0.15")


def shares_leave_rows(val_share: float, test_share: float) -> None:
    """UserError unless both shares are positive and leave training rows."""
    if not (val_share > 0 and test_share > 0 and val_share + test_share < 1):
        raise UserError(
            f"val_share {val_share} and test_share {test_share} must be positive and leave rows to train on: "
            "give for example 0.1 and 0.2"
        )
