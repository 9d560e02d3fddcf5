"""A connection to the live page: one that asks for nothing is given up, so that nobody keeps others out."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # within which a request must be complete
MOST = 256  # connections at once; a browser holds six
SHARE = 4  # one file of so many that the process may open is a connection


def largest_number() -> int:
    """The connections at once for which this process may open enough files."""
    with suppress(ImportError):  # Windows
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // SHARE))
    return MOST


def backlog() -> int:
    """The connections that are accepted before one of them is looked at; closing one takes three such turns more."""
    return max(1, largest_number() // 4)


class Connection(H11Protocol):
    """Closed if no whole request has come within ten seconds; the one that waits longest, if there are too many."""

    waits_since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()
        open_ones: list[Any] = [c for c in self.connections if not c.transport.is_closing()]
        if len(open_ones) > largest_number():
            min((c for c in open_ones if c.waits()), key=lambda c: c.waits_since).transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    def waits(self) -> bool:
        """Whether there is no request that is being answered."""
        return not self.cycle or self.cycle.response_complete

    def _wait(self) -> None:
        self.waits_since = since = time.monotonic()

        def late() -> None:
            if self.waits() and self.waits_since == since:
                self.transport.abort()

        asyncio.get_running_loop().call_later(SECONDS, late)
