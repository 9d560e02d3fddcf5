"""Partitions of a data set's rows over clients (more of them are in `skews`).

Every function is pure and draws from the generator it is given; the same seed gives the same rows.  All are
vectorised over rows: 10,000 clients take less than a second.

Most say only who holds which rows (`Held`), in random order; `assignment.split` then divides each client's rows into
training, validation and test, none empty, so a client needs three rows.  `ways_shots` and `fedgen` divide them
themselves.
"""

from __future__ import annotations

import numpy as np

from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data.assignment import (
    MIN_ROWS,
    Held,
    Partition,
    attempts,
    blocks,
    collect,
    enough_rows,
    fits,
    pools,
    raise_to,
    rounded_down,
    validation_role,
)


def ways_shots(
    y: np.ndarray,
    train_rows: int,
    clients: int,
    ways: int,
    ways_spread: int,
    shots: int,
    shots_spread: int,
    val_shots: int,
    test_shots: int,
    rng: np.random.Generator,
) -> Partition:
    """Give every client a few classes and, in each of them, equally many rows.

    y            [rows] classes 0..C-1; rows [0, train_rows) are the official training set, the rest the test set.
    ways         client i holds ways_i classes, drawn without replacement; ways_i is uniform on the integers
                 of [ways - ways_spread, ways + ways_spread] that lie in [min(2, C), C].
    shots        of each of its classes it holds shots_i training rows; shots_i is uniform on the integers of
                 [shots - shots_spread, shots + shots_spread] from 2 up, one draw per client.
    val_shots    validation rows per class, official training rows as well.
    test_shots   test rows per class from the official test set; without one, from the training rows.

    Rows are assigned in consecutive blocks of one random order per class.  The clients' classes are redrawn, up to
    1000 times (fewer above 1000 clients), until no class needs more rows than it has; the draws of ways_i and shots_i
    stay.  Raises UserError if no draw succeeds.

    Source: FedProto, Tan et al., AAAI 2022, arXiv:2105.00243; GFPL, arXiv:2602.21873.  Differs: FedProto's code
    has one half-width for ways and shots (GFPL two), stops ways at C - 1 and takes shots on [s - sd + 1, s + sd];
    here the distributions are symmetric.
    """
    classes = int(y.max()) + 1
    if ways > classes:
        raise UserError(f"ways is {ways}, but the data set has {several(classes, 'class')}: give {classes} or fewer")
    ways_range = max(min(2, classes), ways - ways_spread), min(classes, ways + ways_spread)
    ways_of = rng.integers(*ways_range, clients, endpoint=True)
    shots_of = rng.integers(max(2, shots - shots_spread), shots + shots_spread, clients, endpoint=True)

    # rows per class of each client, from the training and the test pool [2, clients]; stock: rows in these pools
    need = np.stack([shots_of + val_shots, np.full(clients, test_shots)])
    if train_rows == len(y):
        need = np.stack([need.sum(0), np.zeros(clients, np.int64)])
    stock = np.stack([np.bincount(part, minlength=classes) for part in (y[:train_rows], y[train_rows:])])
    holds = _draw_classes(ways_of, need, stock, rng)  # [clients, classes]
    rows, owner, place = blocks(y[:train_rows], holds * need[0][:, None], rng)
    role = (place >= shots_of[owner]).astype(np.int64) + (place >= shots_of[owner] + val_shots)
    test, test_owner, _ = blocks(y[train_rows:], holds * need[1][:, None], rng)
    return collect(rows, owner, role, clients, (train_rows + test, test_owner))


def dirichlet(y: np.ndarray, clients: int, alpha: float, floor: int, rng: np.random.Generator) -> Held:
    """Partition every class over the clients in shares drawn from Dir(alpha, ..., alpha).

    y        [rows] classes 0..C-1, official training and test set pooled; every row is used.
    alpha    > 0; 0.1 gives about one or two classes per client, 100 is near iid.
    floor    the least rows of a client, 3 or more.

    Classes are assigned in order, and a client that already holds rows / clients or more gets no rows of later classes
    (the balance step of the FedMA and PFLlib code).  Shares are redrawn, up to 100 times (fewer above 1000 clients),
    until every client reaches the floor; if no draw succeeds, the missing rows are taken one by one, at random, from
    the client that is largest at the time.
    Raises UserError if clients * floor exceeds the rows.
    Source: Yurochkin et al., ICML 2019, arXiv:1905.12022, section 4; Hsu et al., arXiv:1909.06335.
    """
    fits(len(y), clients, floor)
    stock = np.bincount(y)
    for _ in range(attempts(100, clients, len(stock))):
        counts = _dirichlet_shares(stock, clients, alpha, rng)
        if counts.sum(1).min() >= floor:
            break
    rows, owner, _ = blocks(y, counts, rng)
    order = rng.permutation(len(y))
    return Held(rows[order], raise_to(floor, owner[order], clients))


def iid(y: np.ndarray, clients: int, rng: np.random.Generator) -> Held:
    """Partition all rows at random; client sizes differ by at most one.  Errors as for `dirichlet`."""
    fits(len(y), clients, MIN_ROWS)
    return Held(rng.permutation(len(y)), np.arange(len(y)) % clients)


def fedgen(
    y: np.ndarray,
    train_rows: int,
    total: int,
    clients: int,
    alpha: float,
    share: float,
    floor: int,
    val_share: float,
    rng: np.random.Generator,
) -> Partition:
    """Partition a share of every class by Dir(alpha, ..., alpha) under a cap, and test each client on its own classes.

    y        [rows] classes 0..C-1; rows [0, train_rows) are the official training set, the rest the test set.  Without
             a test set, a random sixth of each class's rows (rounded down) is set aside for it.
    whole    N, the rows of the official training set: more than train_rows if classes were left out of y.
    alpha    > 0; the draw is per class over the clients, not per client over the classes.
    share    in (0, 1], of the training rows.  It also sets the cap M = share * N / clients.  Below 1 a class gives
             min(M, share * its rows) rows, rounded down: at 0.5 and 20 clients Fashion-MNIST gives 1500 a class, a
             quarter and not a half.  At 1 every row is assigned.
    floor    the least rows of a client before validation rows are split off, 3 or more as for `dirichlet`.
    val_share   of each client's rows, at random, for validation: at least one, and at least one stays for training.

    Classes, and rows within a class, come in random order.  A client that holds M rows or more gets no rows of later
    classes; some client is always below M while there are rows to assign, as there are at most clients * M.  Slices
    end at floor(cumulated share * rows).  So at small alpha the clients after a class's main holder often get a single
    row of it, and are tested on it.  The partition is redrawn, up to 5000 times (fewer for many clients or classes),
    until every client reaches the floor.  Test rows: for each class of which a client got training rows, floor(the
    class's test rows / clients), disjoint; so test classes are balanced and training classes are not.
    Raises UserError if the floor is not reached, or if a client gets no test row.

    Source: the released code of FedGen (Zhu et al., ICML 2021).  Differs: it has no validation rows, draws the order
    of classes only once instead of with each try, redraws without limit, and takes test rows in the file's order.
    """
    pool, test_pool = pools(y, train_rows, rng)  # row numbers
    cap = share * (total if train_rows < len(y) else total - len(test_pool)) / clients
    stock = np.bincount(y[pool], minlength=int(y.max()) + 1)
    used = stock if share == 1 else np.minimum(rounded_down(cap), rounded_down(share * stock))
    counts = _shares_above_floor(used, clients, alpha, cap, floor, rng)  # [clients, classes]
    rows, owner, _ = blocks(y[pool], counts, rng)
    order = rng.permutation(len(rows))
    rows, owner = rows[order], owner[order]
    role = validation_role(owner, clients, val_share)
    test, test_owner, _ = blocks(y[test_pool], _test_shares(y[test_pool], counts), rng)
    return collect(pool[rows], owner, role, clients, (test_pool[test], test_owner))


def natural(
    owner: np.ndarray, clients: int, owners: int, share: float, rng: np.random.Generator, names: tuple[str, ...] = ()
) -> Held:
    """Every client is a group of people: it holds all rows of `owners` owners, drawn without replacement.

    Clients with one owner each are in the owners' order.  The last client may have fewer owners.

    owner    [rows] the owner of each row (a celebrity, a writer), any integers; the official training rows only, so
             that training and test rows are of the same people.
    share    in (0, 1]: the groups are drawn from this share of the owners, rounded down.
    names    of owner 0, 1, …, for messages; () if owners are named by their numbers.
    Raises UserError if there are too few owners, or if a client's owners have fewer than 3 rows together.

    Source: LEAF, Caldas et al. 2018, arXiv:1812.01097; groups of ten as in FedGen's code.  Differs: LEAF leaves out
    celebrities with fewer than five images.
    """
    people, person = np.unique(owner, return_inverse=True)
    pool = rng.permutation(len(people))[: int(rounded_down(share * len(people)))]
    if (clients - 1) * owners >= len(pool):
        raise UserError(
            f"{several(clients, 'client')} of {several(owners, 'owner')} each need {clients * owners}, but there "
            f"are {len(pool)}: take fewer clients or owners, or a larger share"
        )
    members = pool[: clients * owners]
    if owners == 1:
        members = np.sort(members)  # client k is the same owner for every seed; groups and their order are redrawn
    client = np.full(len(people), -1)
    client[members] = np.repeat(np.arange(clients), owners)[: len(members)]
    rows = rng.permutation(len(owner))
    rows = rows[client[person[rows]] >= 0]
    holder = client[person[rows]]
    enough_rows(
        np.bincount(holder, minlength=clients),
        lambda k: " and ".join(names[p] if names else str(p) for p in people[client == k].tolist()),
    )
    return Held(rows, holder)


def _draw_classes(ways: np.ndarray, need: np.ndarray, stock: np.ndarray, rng: np.random.Generator) -> np.ndarray:
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


def _dirichlet_shares(stock: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Rows of each client and class, int [clients, classes], for `dirichlet`."""
    counts = np.zeros((clients, len(stock)), np.int64)
    for c in np.flatnonzero(stock):
        # part of a Dirichlet vector, scaled to sum 1, is a Dirichlet vector: draw only for those below the mean
        below_mean = np.flatnonzero(counts.sum(1) * clients < stock.sum())
        cuts = np.rint(rng.dirichlet(np.full(len(below_mean), alpha)).cumsum()[:-1] * stock[c]).astype(np.int64)
        counts[below_mean, c] = np.diff(cuts, prepend=0, append=stock[c])
    return counts


def _shares_above_floor(
    stock: np.ndarray, clients: int, alpha: float, cap: float, floor: int, rng: np.random.Generator
) -> np.ndarray:
    """Rows of each client and class, int [clients, classes], for `fedgen`; no client below floor."""
    # how many clients would fit depends on the share, of which fewer clients get more each, and on the draws
    fits(int(stock.sum()), clients, floor, "fewer clients, a lower floor or a larger share")
    tries, best_floor = attempts(5000, clients, len(stock)), 0
    for _ in range(tries):
        counts = _capped_shares(stock, clients, alpha, cap, rng)
        best_floor = max(best_floor, counts.sum(1).min())
        if best_floor >= floor:
            return counts
    raise UserError(
        f"every client must get {several(floor, 'row')}, but the best of {several(tries, 'draw')} left one with "
        f"{best_floor}: take a lower floor, a higher alpha, fewer clients or a larger share"
    )


def _capped_shares(stock: np.ndarray, clients: int, alpha: float, cap: float, rng: np.random.Generator) -> np.ndarray:
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


def _test_shares(y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Test rows of each client and class for `fedgen`: an equal part of each class that it trains on, as in counts."""
    clients = len(counts)
    rows = np.bincount(y, minlength=counts.shape[1])
    shares = (counts > 0) * (rows // clients)
    if shares.sum(1).min() == 0:
        raise UserError(
            f"every client needs a test row, but {several(clients, 'client')} share {rows.min()} to {rows.max()} rows "
            "a class: take fewer clients than a class has test rows"
        )
    return shares
