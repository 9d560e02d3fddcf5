"""Addresses of clusters as users type them: parsed, and checked for a listener."""

from __future__ import annotations

import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from fedtune.core.errors import UserError

SECONDS = 5.0  # to wait for an answer
PORTS = {"http": 80, "https": 443}  # where none is given


class Address(NamedTuple):
    """A host and a port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST:PORT, with brackets around a host of IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parsed(text: str, schemes: tuple[str, ...], rule: str) -> Address:
    """Parse an address like http://host:port or host:port; UserError with the rule if it is invalid.

    schemes: that it may begin with; "" among them: host:port alone is one too.
    """
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port or PORTS.get(parts.scheme)
        if parts.scheme not in schemes or not parts.hostname or not port or not text.isprintable() or " " in text:
            raise ValueError
        parts.hostname.encode("idna")  # labels of a name that are empty or too long
    except ValueError:  # UnicodeError among them
        raise UserError(f"{rule}, but got {text!r}") from None
    return Address(parts.hostname, port)


def require_answer(address: Address, rule: str, help: str) -> None:
    """UserError if nothing listens there, without a long wait."""
    try:
        socket.create_connection(address, timeout=SECONDS).close()
    except OSError as error:
        raise UserError(f"{rule}, but nobody answers at {address} ({error}); {help}") from error
