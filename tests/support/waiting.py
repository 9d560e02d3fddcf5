"""Waiting for what another process is about to do."""

import time
from typing import Any


def wait_for(what: Any, seconds: float = 900, every: float = 0.1) -> Any:
    """Its first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError("it never came")
