"""The rule of bad input: a command ends in 5 s and 1 GB with status 0, 2 or 130, and a refusal is one line.

No stack is shown, nothing unforeseen is reported as such, and no file is left behind.  Commands run in this process, up
to where Ray would start or training begin: what comes so far has been accepted.
"""

from __future__ import annotations

import io
import os
import re
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fedtune import __main__ as console
from fedtune.analysis import reproduce

SECONDS = 10.0  # of a processor; a command that hangs takes more on any machine
BYTES = 2**30
STATUSES = (0, 2, 130)


class Answer(NamedTuple):
    """What a command did with what it was given."""

    status: int | None  # None where it was accepted: Ray would start, or training begin
    out: str
    err: str
    broken: str  # which part of the rule, with the place; empty where it holds

    @property
    def kind(self) -> str:
        """What is broken without its details, to count by."""
        return self.broken.splitlines()[0] if self.broken else ""


class Begun(BaseException):
    """Ray would start now, or training begin."""


class TooSlow(BaseException):
    """The command's time is over."""


def ask(argv: Sequence[str], folder: Path, seconds: float = SECONDS) -> Answer:
    """Run a command with `folder` as the current one, in which alone it may write; how it answered."""
    before, out, err = contents(folder), io.StringIO(), io.StringIO()
    status: int | None = None
    broken = ""
    with ExitStack() as held:
        for context in (_in(folder), nothing_begins(), redirect_stdout(out), redirect_stderr(err)):
            held.enter_context(context)
        try:
            with within(seconds, BYTES):
                first, *rest = argv
                status = reproduce.main(rest) if first == "reproduce" else console.main([first, *rest])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except Begun:
            pass
        except TooSlow as error:
            broken = f"slow: more than {seconds:g} s {place(error)}"
        except BaseException as error:
            broken = f"stack: {type(error).__name__} {place(error)}\n{error}"
    said = err.getvalue()
    if not broken:
        broken = _judged(status, out.getvalue(), said)
    if not broken and status not in (None, 0) and (after := contents(folder)) != before:
        broken = f"left: {sorted(after.keys() ^ before.keys()) or 'a file was changed'}"
    return Answer(status, out.getvalue(), said, broken)


def _judged(status: int | None, out: str, err: str) -> str:
    """What a status and an output break of the rule."""
    if status not in (None, *STATUSES):
        return f"status: {status}\n{err[-500:]}"
    theirs = re.search(r"\.py:\d+", err)  # a line of the user's code, below which its traceback stands
    if "Traceback" in err + out and "Exception ignored in" not in err and not theirs:
        return f"stack: shown\n{err[-500:]}"
    if status == 2:
        lines = [line for line in err.splitlines() if not line.startswith(("note", "warning"))]
        if not lines or (len(lines) > 1 and not theirs):
            return f"lines: {len(lines)} for a refusal\n{err[-500:]}"
        if len(lines[0]) > LONGEST:
            return f"long: a refusal of more than {LONGEST} letters\n{lines[0][:200]}"
    if any(ord(letter) < 32 and letter not in "\n\t" for letter in err):
        return f"control: a control character on the terminal\n{err[-500:]!r}"
    return ""


LONGEST = 600


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, 0 if path.is_dir() else status.st_mtime_ns)
    return found


def place(error: BaseException) -> str:
    """The innermost place in our own code."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "/fedtune/" in f.filename or "/analysis/" in f.filename
    ]
    frames = [f for f in frames if "site-packages" not in f.filename]
    return f"at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


@contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def within(seconds: float, more: int) -> Iterator[None]:
    """TooSlow after so many seconds of this process, or twelve times as many on the clock; MemoryError beyond so many
    bytes more than it has now.

    Other processes may have the machine meanwhile, so the clock alone would say little.
    """

    def over(*_: Any) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    handlers = {which: signal.signal(which, over) for which in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_REAL, 12 * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for which, handler in handlers.items():
            signal.signal(which, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def nothing_begins() -> Iterator[None]:
    """Begun where Ray would start, a client train, a check run or a page be served; nobody answers at any address."""
    from fedtune.cluster import ray_start
    from fedtune.engine import simulation
    from fedtune.reporting.watch import server
    from fedtune.studies import checking

    def begun(*_: Any, **__: Any) -> Any:
        raise Begun

    def nobody(address: tuple[str, int], *_: Any, **__: Any) -> Any:
        address[0].encode("idna")  # as the true one does
        raise ConnectionRefusedError(111, "Connection refused")

    with ExitStack() as held:
        for owner, name, instead in (
            (ray_start, "connected", begun),
            (simulation.Simulation, "step", begun),
            (checking.Check, "judge", begun),
            (server, "serve", begun),
            (socket, "create_connection", nobody),
        ):
            held.enter_context(mock.patch.object(owner, name, instead))
        yield


def warm() -> None:
    """Load what commands load, which is not to count as their time."""
    import plotly  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import ray.tune  # noqa: F401
    import rich.live  # noqa: F401
    import torch  # noqa: F401

    import fedtune.analysis.partition_plots  # noqa: F401
    import fedtune.reporting.page  # noqa: F401
    from fedtune.analysis.reproduction import reproduction  # noqa: F401
    from fedtune.experiment import registry
    from fedtune.studies import resuming  # noqa: F401
    from fedtune.studies.comparison import comparison  # noqa: F401

    for name in registry.names():
        registry.find(name)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000))


Case = Callable[..., Answer]
