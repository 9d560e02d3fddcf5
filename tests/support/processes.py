"""Processes below one, where forks of the tests' server (support/forked) stand for what was started."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def stood_for() -> dict[int, int]:
    """The forks there are, and the processes that they are forks for."""
    found: dict[int, int] = {}
    if "FEDTUNE_FORKS" not in os.environ:
        return found
    for note in Path(os.environ["FEDTUNE_FORKS"]).parent.glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it ended meanwhile, or begins
            found[int(note.name)] = int(note.read_text())
    return found


def working(pid: int) -> int:
    """The process that does the work of one: its fork, or itself."""
    return next((fork for fork, started in stood_for().items() if started == pid), pid)


def kill(process: subprocess.Popen) -> None:
    """SIGKILL to whoever does its work; waits until that is over."""
    os.kill(working(process.pid), signal.SIGKILL)
    process.wait()


def below(pid: int) -> list[int]:
    """A process and all that it started, with their forks."""
    forks, children = stood_for(), {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            here = int(stat.parent.name)
            parent = forks.get(here) or int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(here)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def lives(pid: int) -> bool:
    """Whether it has not ended; one that ended may stay listed until whoever adopted it looks."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
