"""How many processors this process may use, which on a cluster are fewer than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable(root: Path = Path("/")) -> int:
    """The processors that this process may use, at least one: by affinity, control groups' quotas, and Slurm.

    root: where /proc and /sys are.
    """
    limits = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    limits += _quotas(root)
    # A task of srun has its own share of the node; a batch script has what its job was given on it.
    task, node = os.environ.get("SLURM_CPUS_PER_TASK"), os.environ.get("SLURM_CPUS_ON_NODE")
    slurm = task or node if "SLURM_STEP_ID" in os.environ else node
    limits += [float(slurm)] if slurm and slurm.isdecimal() else []
    return max(1, int(min(limits)))


def _quotas(root: Path) -> Iterator[float]:
    """The processors that the quotas of this process's control groups stand for, of both versions."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / controllers
            group = top / path.lstrip("/")
            for folder in (group, *(above for above in group.parents if above.is_relative_to(top))):
                yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):  # there is no such file, or no number: "max"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        yield quota / period
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:  # -1: none
            yield quota / period
