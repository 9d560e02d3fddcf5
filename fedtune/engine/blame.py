"""Find the client behind an error in client code, by running it again for one client after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedtune.core.draws import CannotRepeat
from fedtune.core.errors import Diverged, UserError
from fedtune.data.federation import Federation
from fedtune.tracing import Impure

# errors not caused by a client or a line: diverged training, a full memory or disk, and errors already reported
PASSING = (UserError, Diverged, CannotRepeat, Impure, torch.OutOfMemoryError, MemoryError, OSError)

Alone = Callable[[int], object]  # runs client code for the client at this place


class OfClient(Exception):
    """An error that a client's code raises even when run alone; its cause is the original error."""

    def __init__(self, client: int | None) -> None:
        """client: its position among those that ran; None if others fail too."""
        super().__init__(client)
        self.client = client

    def taken(self) -> Exception:
        """The original error, to be reported instead of this one."""
        cause, self.__cause__ = self.__cause__, None
        assert isinstance(cause, Exception)
        return cause

    def who(self, f: Federation, clients: int) -> str:
        """The client in words, ` (owner clinic-07)`.  clients: number per run, if several runs are stacked."""
        return "" if self.client is None else f" ({f.who(self.client if f.owners else self.client % clients)})"


@contextmanager
def finding(alone: Alone, clients: int) -> Iterator[None]:
    """While code runs for several clients: turn an error into the `OfClient` of the first client whose code fails
    alone.

    If none does, or it cannot be determined, the error is unchanged.
    """
    try:
        yield
    except Exception as error:  # whatever client code raises
        found = _located(error, alone, clients)
        if found is error:
            raise
        raise found from found.__cause__


@contextmanager
def among(clients: Tensor) -> Iterator[None]:
    """While code runs for these clients: translate an `OfClient`'s position to the client's number."""
    try:
        yield
    except OfClient as error:
        error.client = None if error.client is None else int(clients[error.client])
        raise


def _located(error: Exception, alone: Alone, clients: int) -> Exception:
    if isinstance(error, (OfClient, *PASSING)) or "CUDA error" in str(error):  # after it nothing runs on the GPU
        return error
    for k in range(clients):
        if own := _raised(alone, k):
            if isinstance(own, PASSING):
                return own
            found = OfClient(None if any(_raised(alone, i) for i in {0, clients - 1} - {k}) else k)
            found.__cause__ = own
            return found
    return error


def _raised(alone: Alone, client: int) -> Exception | None:
    stacked = sys.exc_info()[1]  # which is being handled: Python would take it for a cause of this one
    try:
        alone(client)
    except Exception as error:  # whatever client code raises
        at: BaseException | None = error
        while at and at.__context__ is not stacked:
            at = at.__context__
        if at:
            at.__context__ = None
        return error
    return None
