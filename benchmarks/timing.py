"""How the benchmarks measure time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch


def clock(device: str = "cpu") -> Callable[[], float]:
    """What tells the seconds that work takes: of the processor, and where a GPU does it, those until it is done."""
    if device == "cpu":
        return time.process_time

    def done() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return done


def best_of(jobs: list[Callable[[], object]], repeats: int, device: str = "cpu") -> list[float]:
    """The least time of each job, the jobs taking turns: on a shared machine noise only ever adds."""
    times, now = [float("inf")] * len(jobs), clock(device)
    for _ in range(repeats):
        for i, job in enumerate(jobs):
            began = now()
            job()
            times[i] = min(times[i], now() - began)
    return times


def status(field: str) -> float:
    """MiB of a line of /proc/self/status: VmRSS is what this process holds, VmHWM the most that it held."""
    text = Path("/proc/self/status").read_text().split(field + ":")[1]
    return int(text.split()[0]) / 1024
