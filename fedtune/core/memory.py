"""What memory is free, and whether the C library keeps what a step has freed."""

from __future__ import annotations

import ctypes
import math
import re
import sys
from contextlib import suppress
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory for the next step; call it once.  Returns whether it is one that can.

    glibc returns the buffers of 1 to 50 MB, and the next step pays a page fault for every 4 kB: up to a third of its
    time.  The process stays as large as its largest step.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**30))


def give_back_memory() -> None:
    """Return the memory that `keep_freed_memory` kept.  Call it between runs of one process, or their peaks add up."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


def free(device: str) -> float:
    """The bytes that a process may still use on a device; infinite if the system does not say."""
    if device != "cpu":
        import torch

        return torch.cuda.mem_get_info()[0]
    with suppress(OSError):
        if found := re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text()):
            return 1024.0 * int(found[1])
    return math.inf
