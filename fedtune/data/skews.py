"""More partitions: shards, skewed sizes, domains; and skewed sizes on top of any other partition.

As in `partitions`, every function is pure, draws from the generator it is given, and says who holds which rows.
"""

from __future__ import annotations

import numpy as np

from fedtune.core import randomness
from fedtune.core.errors import UserError
from fedtune.core.terminal import several
from fedtune.data.assignment import MIN_ROWS, Held, Partition, attempts, enough_rows, fits, raise_to


def shards(y: np.ndarray, clients: int, shards: int, rng: np.random.Generator) -> Held:
    """Sort the rows by class, cut them into shards of equal size and give every client `shards` of them at random.

    y        [rows] classes 0..C-1, official training and test set pooled; every row is used.
    shards   per client; 2 give about two classes, many are near iid.  Sizes of shards differ by at most one row.
    Raises UserError if a shard would be empty, or a client's rows fewer than 3.

    Source: McMahan et al., AISTATS 2017, arXiv:1602.05629: 200 shards of 300 images for 100 clients.  Differs: theirs
    is the training set and the test set is the server's; here each client is scored on the classes that it holds.
    """
    fits(len(y), clients, MIN_ROWS)
    if clients * shards > len(y):
        raise UserError(
            f"{several(clients, 'client')} of {several(shards, 'shard')} each need {clients * shards} rows, but "
            f"there are {len(y)}: take fewer shards or clients"
        )
    rows = rng.permutation(len(y))
    rows = rows[np.argsort(y[rows], kind="stable")]  # in random order within a class
    holder = rng.permutation(np.repeat(np.arange(clients), shards))  # the client of each shard
    owner = holder[np.arange(len(y)) * (clients * shards) // len(y)]
    order = rng.permutation(len(y))
    # shards may have only a row or two if there are hardly more rows than shards
    return Held(rows[order], raise_to(MIN_ROWS, owner[order], clients))


def quantity(rows: int, clients: int, alpha: float, floor: int, rng: np.random.Generator) -> Held:
    """Give clients random rows, with sizes drawn from Dir(alpha, ..., alpha): clients differ in size only.

    alpha    > 0; at 0.5 some clients hold several times the mean, at 100 all hold about as many.
    floor    the least rows of a client, 3 or more.  Shares are redrawn up to 100 times until every client has as many;
             if no draw succeeds, the missing rows are taken one by one from the client that is largest at the time.
    Every row is used.  Errors as for `dirichlet`.

    Source: NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079 (quantity skew, 0.5).  Differs: their floor is 10
    rows, and they redraw without limit.
    """
    fits(rows, clients, floor)
    for _ in range(attempts(100, clients, 1)):
        cuts = np.rint(rng.dirichlet(np.full(clients, alpha)).cumsum()[:-1] * rows).astype(np.int64)
        sizes = np.diff(cuts, prepend=0, append=rows)
        if sizes.min() >= floor:
            break
    return _of_sizes(sizes, floor, rng)


def power_law(rows: int, clients: int, power: float, floor: int, rng: np.random.Generator) -> Held:
    """Give clients rows at random; the r-th largest holds a share in proportion to r ** -power.

    power    0 or more; at 0 sizes differ by at most one, at 1 the largest of 20 clients holds 28 % of the rows.
    floor    the least rows of a client, 3 or more: missing rows are taken from the largest clients.
    Which client has rank r is drawn.  Every row is used.  Errors as for `dirichlet`.

    Source: sizes by a power law are FedProx's, Li et al., MLSys 2020, arXiv:1812.06127.  Differs: their released code
    draws sizes from a log-normal distribution; here they follow the power law exactly, without a draw.
    """
    fits(rows, clients, floor)
    shares = np.arange(1, clients + 1) ** -float(power)  # of the largest client, the second, …
    cuts = np.rint((shares / shares.sum()).cumsum()[:-1] * rows).astype(np.int64)
    sizes = rng.permutation(np.diff(cuts, prepend=0, append=rows))
    return _of_sizes(sizes, floor, rng)


def _of_sizes(sizes: np.ndarray, floor: int, rng: np.random.Generator) -> Held:
    """Give clients random rows in these sizes, after the largest have filled the others up to floor."""
    rows, clients = int(sizes.sum()), len(sizes)
    owner = raise_to(floor, rng.permutation(np.repeat(np.arange(clients), sizes)), clients)
    return Held(rng.permutation(rows), owner)


def domains(owner: np.ndarray, clients: int, rng: np.random.Generator, names: tuple[str, ...] = ()) -> Held:
    """Every client holds rows of one domain: client k of domain k mod D; clients of a domain share its rows evenly.

    owner    [rows] the domain of each row, any integers: a hospital or a camera, in ascending order.
    clients  at least one per domain (D); every row is used.
    names    the name of owner 0, 1, …, for messages; () if owners are named by their numbers.
    Raises UserError if there are fewer clients than domains, or if a client's rows would be fewer than 3.

    Source: FedBN, Li et al., ICLR 2021, arXiv:2102.07623: one digit data set a client, or a part of one.
    """
    numbers, domain = np.unique(owner, return_inverse=True)
    if clients < len(numbers):
        raise UserError(
            f"partition domains needs a client for each of the {len(numbers)} domains, but clients is {clients}: give "
            f"--clients {len(numbers)} or more"
        )
    rows = rng.permutation(len(owner))
    rows = rows[np.argsort(domain[rows], kind="stable")]  # by domain, in random order within it
    size = np.bincount(domain)
    place = np.arange(len(owner)) - np.repeat(size.cumsum() - size, size)
    of_domain = np.bincount(np.arange(clients) % len(numbers))  # clients of each domain
    holder = domain[rows] + len(numbers) * (place % of_domain[domain[rows]])
    enough_rows(size, lambda d: names[numbers[d]] if names else str(numbers[d]), of_domain)
    order = rng.permutation(len(owner))
    return Held(rows[order], holder[order])


def thinned(parts: Partition, power: float, seed: int) -> Partition:
    """Quantity skew on top of any partition: the client of rank r keeps r ** -power of its training rows.

    The rank of each client is drawn from (seed, "thinning"), and the rows it keeps from (seed, "thinning", client); at
    least one row stays.  The rows kept at a larger power are a subset of those kept at a smaller one.  Validation and
    test rows do not change. At power 0 nothing changes.  Source: as for `power_law`.
    """
    if not power:
        return parts
    rank = randomness.numpy_stream(seed, "thinning").permutation(len(parts.train)) + 1.0
    train = []
    for k, rows in enumerate(parts.train):
        order = randomness.numpy_stream(seed, "thinning", k).permutation(len(rows))
        train.append(rows[np.sort(order[: max(1, round(len(rows) * rank[k] ** -power))])])
    return parts._replace(train=train)
