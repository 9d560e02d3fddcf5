"""How the benchmarks measure time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def best_of(jobs: list[Callable[[], object]], repeats: int) -> list[float]:
    """The least CPU time of each job, the jobs taking turns: on a shared machine noise only ever adds."""
    times = [float("inf")] * len(jobs)
    for _ in range(repeats):
        for i, job in enumerate(jobs):
            began = time.process_time()
            job()
            times[i] = min(times[i], time.process_time() - began)
    return times


def status(field: str) -> float:
    """MiB of a line of /proc/self/status: VmRSS is what this process holds, VmHWM the most that it held."""
    text = Path("/proc/self/status").read_text().split(field + ":")[1]
    return int(text.split()[0]) / 1024
