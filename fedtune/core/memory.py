"""How much memory there is, and what the C library does with what a step has freed: keep it, or give it back."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory for the next step instead of returning it to the system; call it once.

    A stacked step frees and allocates the same few buffers of 1 to 50 MB.  glibc hands them back each time, and the
    next step pays a page fault for every 4 kB: 1500 faults a step of the two-conv CNN at B = 4 (a third of its time),
    6000 at B = 32.  Values do not change, and the loop over clients is as fast with it as without; the process
    stays as large as its largest step.  Returns whether it took effect: False where the C library is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**30))


def give_back_memory() -> None:
    """Return what `keep_freed_memory` kept: between runs of one process, which would add up their largest steps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim:
        trim(0)


def there_is() -> int:
    """Bytes of memory of this machine, or of the container that this process runs in."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdecimal() else whole
