"""Find the client and row behind an error in client code, by running it again for one client and fewer rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedtune.core.draws import CannotRepeat
from fedtune.core.errors import Diverged, UserError
from fedtune.data.federation import Federation, Split
from fedtune.tracing import Impure

# errors not caused by a row or a line: diverged training, a full memory or disk, and errors already reported
PASSING = (UserError, Diverged, CannotRepeat, Impure, torch.OutOfMemoryError, MemoryError, OSError)

Alone = Callable[[int, "Tensor | None"], object]  # runs client code for a client, on all its rows or on those at [n]


class OfClient(Exception):
    """An error that a client's code raises even when run alone; its cause is the original error."""

    def __init__(self, client: int | None, row: int | None) -> None:
        """client: its position among those that ran; None if others fail too.  row: the row that causes it, if any."""
        super().__init__(client, row)
        self.client, self.row = client, row

    def taken(self) -> Exception:
        """The original error, to be reported instead of this one."""
        cause, self.__cause__ = self.__cause__, None
        assert isinstance(cause, Exception)
        return cause

    def who(self, f: Federation, clients: int) -> str:
        """The client and row in words, ` (owner clinic-07, row 133)`.  clients: number per run, if several runs are
        stacked.
        """
        if self.client is None:
            return ""
        client = self.client if f.owners else self.client % clients
        row = None if self.row is None else self.row if f.row is None else int(f.row[self.row])
        return f" ({f.who(client)})" if row is None else f" ({f.who(client)}, row {row})"


@contextmanager
def finding(alone: Alone, rows: Callable[[], Sequence[Tensor]]) -> Iterator[None]:
    """While code runs for several clients: turn an error into the `OfClient` of the first client whose code fails
    alone.

    If none does, or it cannot be determined, the error is unchanged.  rows: returns the row numbers of each client.
    """
    try:
        yield
    except Exception as error:  # whatever client code raises
        found = _located(error, alone, rows)
        if found is error:
            raise
        raise found from found.__cause__


@contextmanager
def among(clients: Tensor, table: Split | None = None, first: int = 0) -> Iterator[None]:
    """While code runs for these clients: translate an `OfClient`'s position to the client's number, and its row to the
    federation's.

    table: the table of the clients' rows, starting at `first`; None if the row is the federation's already.
    """
    try:
        yield
    except OfClient as error:
        error.client = None if error.client is None else int(clients[error.client])
        if table is not None and error.row is not None:
            error.row = int(table.rows[error.client, first + error.row])
        raise


def _located(error: Exception, alone: Alone, rows: Callable[[], Sequence[Tensor]]) -> Exception:
    if isinstance(error, (OfClient, *PASSING)) or "CUDA error" in str(error):  # after it nothing runs on the GPU
        return error
    each = rows()
    for k, mine in enumerate(each):
        if own := _raised(alone, k, None):
            if isinstance(own, PASSING):
                return own
            row = _row(alone, k, len(mine))
            found = OfClient(k, None if row is None else int(mine[row]))
            if row is None and any(_raised(alone, i, None) for i in {0, len(each) - 1} - {k}):
                found.client = None
            found.__cause__ = own
            return found
    return error


def _raised(alone: Alone, client: int, rows: Tensor | None) -> Exception | None:
    stacked = sys.exc_info()[1]  # which is being handled: Python would take it for a cause of this one
    try:
        alone(client, rows)
    except Exception as error:  # whatever client code raises
        at: BaseException | None = error
        while at and at.__context__ is not stacked:
            at = at.__context__
        if at:
            at.__context__ = None
        return error
    return None


def _row(alone: Alone, client: int, n: int) -> int | None:
    """The row that makes the code fail, if others do not.  Copies keep the number of rows the same."""

    def fails(rows: Tensor) -> bool:
        return _raised(alone, client, rows.repeat(-(-n // len(rows)))[:n]) is not None

    some = torch.arange(n)
    while len(some) > 1:
        half = some[: len(some) // 2]
        some = half if fails(half) else some[len(some) // 2 :]
    others = [i for i in (0, n // 2, n - 1) if i != some[0]] if n else []
    return int(some[0]) if others and fails(some) and not all(fails(torch.tensor([i])) for i in others) else None
