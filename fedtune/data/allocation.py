"""The random draws of partitions: how many rows of each class every client gets."""

from __future__ import annotations

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import several


def draw_classes(ways: np.ndarray, need: np.ndarray, stock: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which classes each client holds, bool [clients, classes], such that need [2, clients] fits stock [2, classes]."""
    clients, classes = len(ways), stock.shape[1]
    hopeless = (need @ ways > stock.sum(1)).any()
    for _ in range(1 if hopeless else attempts(1000, clients, classes)):
        keys = rng.random((clients, classes))
        holds = keys <= np.sort(keys, axis=1)[np.arange(clients), ways - 1][:, None]  # the `ways` smallest keys
        demand = need @ holds  # [2, classes]
        if (demand <= stock).all():
            return holds
    supply = np.where(demand > 0, stock / np.maximum(demand, 1), np.inf)
    pool, c = np.unravel_index(supply.argmin(), supply.shape)
    enough = int(clients * supply[pool, c])
    raise UserError(
        f"class {c} would need {demand[pool, c]} {('training', 'test')[pool]} rows and has {stock[pool, c]}: take "
        + (f"fewer clients (about {enough}), ways or shots" if enough else "fewer shots")
    )


def dirichlet_shares(stock: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Rows of each client and class, int [clients, classes], for the partition `dirichlet`."""
    counts = np.zeros((clients, len(stock)), np.int64)
    for c in np.flatnonzero(stock):
        # part of a Dirichlet vector, scaled to sum 1, is a Dirichlet vector: draw only for those below the mean
        below_mean = np.flatnonzero(counts.sum(1) * clients < stock.sum())
        cuts = np.rint(rng.dirichlet(np.full(len(below_mean), alpha)).cumsum()[:-1] * stock[c]).astype(np.int64)
        counts[below_mean, c] = np.diff(cuts, prepend=0, append=stock[c])
    return counts


def shares_above_floor(
    stock: np.ndarray, clients: int, alpha: float, cap: float, floor: int, rng: np.random.Generator
) -> np.ndarray:
    """Rows of each client and class, int [clients, classes], for the partition `fedgen`; no client below floor."""
    if clients * floor > stock.sum():
        raise UserError(
            f"{several(clients, 'client')} with at least {several(floor, 'row')} each need {clients * floor} rows, "
            f"but {stock.sum()} are "
            "available: take fewer clients, a lower floor or a larger share"
        )
    tries, best_floor = attempts(5000, clients, len(stock)), 0
    for _ in range(tries):
        counts = capped_shares(stock, clients, alpha, cap, rng)
        best_floor = max(best_floor, counts.sum(1).min())
        if best_floor >= floor:
            return counts
    raise UserError(
        f"every client must get {several(floor, 'row')}, but the best of {several(tries, 'draw')} left one with "
        f"{best_floor}: "
        "take a lower floor, a higher alpha, fewer clients or a larger share"
    )


def capped_shares(stock: np.ndarray, clients: int, alpha: float, cap: float, rng: np.random.Generator) -> np.ndarray:
    """One draw of `fedgen`, int [clients, classes]: each class's kept rows, over clients that hold less than cap."""
    counts = np.zeros((clients, len(stock)), np.int64)
    totals = np.zeros(clients, np.int64)
    alpha = max(alpha, 1e-100)  # one client takes all in both cases, and the next line stays finite
    for c in rng.permutation(np.flatnonzero(stock)):
        # in logarithms, because Gamma(alpha) numbers underflow to 0 for all clients at small alpha
        log = np.log(rng.standard_gamma(alpha + 1, clients)) - rng.standard_exponential(clients) / alpha
        log[totals >= cap] = -np.inf
        total = np.exp(log - log.max()).cumsum()
        # the last client below the cap gets exactly the remaining rows
        cuts = np.floor(total[:-1] / total[-1] * stock[c]).astype(np.int64)
        counts[:, c] = np.diff(cuts, prepend=0, append=stock[c])
        totals += counts[:, c]
    return counts


def test_shares(y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Test rows of each client and class for `fedgen`: an equal part of each class that the client trains on.

    y [test rows] classes; counts [clients, classes] training rows.  UserError if a client gets none.
    """
    clients = len(counts)
    rows = np.bincount(y, minlength=counts.shape[1])
    shares = (counts > 0) * (rows // clients)
    if shares.sum(1).min() == 0:
        raise UserError(
            f"every client needs a test row, but {several(clients, 'client')} share {rows.min()} to {rows.max()} "
            "rows a class: "
            "take fewer clients than a class has test rows"
        )
    return shares


def rounded_down(number: float | np.ndarray) -> np.ndarray:
    """A product rounded down, with a tolerance so that 0.57 * 100 gives 57."""
    return np.floor(np.asarray(number) + 1e-9).astype(np.int64)


def attempts(limit: int, clients: int, classes: int) -> int:
    """How often to redraw: fewer times for many clients, so that it takes less than a second."""
    return max(5, min(limit, 1_500_000 // (clients * classes)))
