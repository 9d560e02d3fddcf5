"""The process of a program that waits for its next trial (`reuse = true`); at most one in a worker."""

from __future__ import annotations

from typing import Any

from fedtune.programs.child import Child

_waiting: list[tuple[Any, Child]] = []  # the process, with what it was started with


def put(key: Any, child: Child) -> None:
    """Keep a process until a trial takes it, or another process comes, or this one ends."""
    close()
    _waiting.append((key, child))


def take(key: Any) -> Child | None:
    """The process that waits, if it is alive and was started with the same; otherwise it ends."""
    if _waiting and _waiting[0][0] == key:
        child = _waiting[0][1]
        child.lines(0)
        if child.exit_status is None and not child.ended:
            return _waiting.pop()[1]
    close()
    return None


def close() -> None:
    """End the process that waits."""
    while _waiting:
        _waiting.pop()[1].close()
