"""Kills at random moments: of the driver, a worker, the raylet, the control service, or of all at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from fuzz import crashes
from fuzz.crashes import Difference, Story

PATIENCE = 600.0  # seconds until a command counts as hung
MOST = 3  # kills of one run
BUSY = "Ray could not be started here"  # on a machine that has too much to do: tried again
OVER = "is finished; --trials +N"  # what resume says of a search that was killed after its last write


class Whole(NamedTuple):
    """A run that nothing disturbed."""

    at: Path  # the folder that it lies in
    seconds: float
    rows: dict[tuple[str, ...], list[str]]


def undisturbed(story: Story, at: Path) -> Whole:
    """Run a story from its beginning to its end."""
    at.mkdir()
    (at / "fair.py").write_text(crashes.FAIR)
    for line in story.before:
        _finish(subprocess.Popen(crashes.command(line, at), **_quiet(at)))
    began = time.monotonic()
    status = _finish(subprocess.Popen(crashes.command(story.words, at), **_quiet(at)))
    if status and BUSY in _last(at):
        shutil.rmtree(at)
        return undisturbed(story, at)
    if status:
        raise RuntimeError(f"{story.name} ends with status {status}: {_last(at)}")
    return Whole(at, time.monotonic() - began, crashes.rows(at / "run"))


def _quiet(at: Path) -> dict:
    return {"stdout": (at / "said").open("w"), "stderr": subprocess.STDOUT, "start_new_session": True}


def _last(at: Path) -> str:
    lines = (at / "said").read_text(errors="replace").splitlines()
    wanted = [line for line in lines if line.startswith("error")] or lines
    return wanted[-1] if wanted else ""


def _finish(process: subprocess.Popen) -> int | None:
    """A process' status; None if it hangs, and was killed."""
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        end(process.pid)
        process.wait()
        return None


# ---- who is killed


def family(pid: int) -> dict[int, str]:
    """A process and all below it, with their command lines."""
    found = {pid: ""}
    with suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found[one.pid] = " ".join(one.cmdline())
    return found


def end(pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Kill a process and all below it, at once."""
    for one in family(pid):
        with suppress(ProcessLookupError):
            os.kill(one, by)


def _one(title: str) -> Callable[[int], None]:
    def kill(pid: int) -> None:
        found = [p for p, t in family(pid).items() if title in t and p != pid]
        if found:
            with suppress(ProcessLookupError):
                os.kill(random.choice(found), signal.SIGKILL)

    return kill


def _signal(which: int) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, which)


VICTIMS: dict[str, Callable[[int], None]] = {
    "driver": _signal(signal.SIGKILL),
    "driver by SIGTERM": _signal(signal.SIGTERM),
    "driver by SIGINT": _signal(signal.SIGINT),
    "worker": _one("ray::"),
    "raylet": _one("raylet/raylet"),
    "control service": _one("gcs_server"),
    "machine": end,
    "group by SIGTERM": lambda pid: os.killpg(pid, signal.SIGTERM),
    "all by SIGTERM": lambda pid: end(pid, signal.SIGTERM),
}


# ---- a run with its kills


class Fate(NamedTuple):
    """What became of a run that was killed."""

    kills: Counter[str]
    difference: Difference
    trouble: str  # a refusal, a stack or a hang; empty if there was none


def disturbed(story: Story, whole: Whole, at: Path, chance: random.Random) -> Fate:
    """Run a story, kill something up to three times, and go on each time until the run is over."""
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir(parents=True)
    (at / "fair.py").write_text(crashes.FAIR)
    if story.before:
        shutil.copytree(whole.at / "first", at / "first")
    kills: Counter[str] = Counter()
    line, run, wanted = story.words, at / "run", chance.randint(1, MOST)
    for attempt in range(20):
        process = subprocess.Popen(crashes.command(line, at), **_quiet(at))
        if kills.total() < wanted:
            victim = chance.choice(list(VICTIMS))
            kills[victim] += _kill(process, run, victim, chance.random() * whole.seconds)
        status = _finish(process)
        end(process.pid)
        if status == 0 or OVER in _last(at):
            return Fate(kills, crashes.difference(crashes.rows(run), whole.rows), "")
        if status is None or "Traceback" in (at / "said").read_text(errors="replace"):
            return Fate(kills, Difference(0, 0, 0), f"{'hangs' if status is None else 'a stack'} after {dict(kills)}")
        if status == 2 and BUSY in _last(at):
            continue
        if status == 2 and kills.total() >= wanted and attempt > wanted:
            return Fate(kills, Difference(0, 0, 0), f"after {dict(kills)}: {_last(at)}")
        line = crashes.onward(story, run, f"run{attempt}")
        run = at / line.partition("--name ")[2].partition(" ")[0] if story.before else run
    return Fate(kills, Difference(0, 0, 0), f"never ends, after {dict(kills)}: {_last(at)}")


def _kill(process: subprocess.Popen, run: Path, victim: str, seconds: float) -> int:
    """Kill so many seconds after the start; whether the command was still at work."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return 0
    with suppress(ProcessLookupError):
        VICTIMS[victim](process.pid)
    return 1
