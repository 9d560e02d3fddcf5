"""Find the client behind an error in client code, by running it again for one client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from fedtune.core.draws import CannotRepeat, Draws
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import Executor, Tree, for_each_client, leaves, take
from fedtune.data.federation import Federation
from fedtune.tracing import Impure

# errors not caused by a client or a line: diverged training, a full memory or disk, and errors already reported
PASSING = (UserError, Diverged, CannotRepeat, Impure, torch.OutOfMemoryError, MemoryError, OSError)
Result = TypeVar("Result")


class OfClient(Exception):
    """An error that a client's code raises even when run alone; its cause is the original error."""

    def __init__(self, client: int | None) -> None:
        """client: its position among those that ran; None if others fail too."""
        super().__init__(client)
        self.client = client

    def who(self, f: Federation, clients: int) -> str:
        """The client in words, ` (owner clinic-07)`.  clients: number per run, if several runs are stacked."""
        return "" if self.client is None else f" ({f.who(self.client if f.owners else self.client % clients)})"


def located(run: Callable[[], Result], alone: Callable[[int], object], clients: int) -> Result:
    """Run code for several clients.  An error becomes the `OfClient` of the first, if any, that fails `alone` too."""
    try:
        return run()
    except (OfClient, *PASSING):
        raise
    except Exception as error:  # whatever client code raises
        if "CUDA error" in str(error):  # after it nothing runs on the GPU
            raise
        stacked = error
    for k in range(clients):  # not within `except`: Python would take the error there for a cause of these
        if own := _raised(alone, k):
            if isinstance(own, PASSING):
                raise own
            all_fail = any(_raised(alone, i) for i in {0, clients - 1} - {k})
            raise OfClient(None if all_fail else k) from own
    raise stacked


def each_client(fn: Callable[..., Tree], executor: Executor, *trees: Tree, draws: Draws) -> Tree:
    """`for_each_client` for client code, with its error `located`."""

    def alone(k: int) -> Tree:
        return draws.alone(fn, k, *(take(tree, k) for tree in trees))

    return located(lambda: for_each_client(fn, executor, *trees, draws=draws), alone, len(leaves(trees)[0]))


@contextmanager
def among(clients: Tensor) -> Iterator[None]:
    """While code runs for these clients: translate an `OfClient`'s position to the client's number."""
    try:
        yield
    except OfClient as error:
        error.client = None if error.client is None else int(clients[error.client])
        raise


def _raised(alone: Callable[[int], object], client: int) -> Exception | None:
    try:
        alone(client)
    except Exception as error:  # whatever client code raises
        return error
    return None
