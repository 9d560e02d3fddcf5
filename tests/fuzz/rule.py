"""The rule of bad input: a command ends with status 0, 2 or 130, and a refusal is one line.

No stack is shown, nothing unforeseen is reported as such, and no file is left behind.  Commands run in this process, up
to where Ray would start or training begin: what comes so far has been accepted.
"""

from __future__ import annotations

import io
import re
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fedtune import __main__ as console
from fedtune.analysis import reproduce

STATUSES = (0, 2, 130)


class Answer(NamedTuple):
    """What a command did with what it was given."""

    status: int | None  # None where it was accepted: Ray would start, or training begin
    out: str
    err: str
    broken: str  # which part of the rule, with the place; empty where it holds


class Begun(BaseException):
    """Ray would start now, or training begin."""


def ask(argv: Sequence[str], folder: Path) -> Answer:
    """Run a command with `folder` as the current one, in which alone it may write; how it answered."""
    before, out, err = contents(folder), io.StringIO(), io.StringIO()
    status: int | None = None
    broken = ""
    try:
        with chdir(folder), nothing_begins(), redirect_stdout(out), redirect_stderr(err):
            first, *rest = argv
            status = reproduce.main(rest) if first == "reproduce" else console.main([first, *rest])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Begun:
        pass
    except BaseException as error:
        broken = f"stack: {type(error).__name__} {place(error)}\n{error}"
    broken = broken or _judged(status, out.getvalue(), err.getvalue())
    if not broken and status not in (None, 0) and (after := contents(folder)) != before:
        broken = f"left: {sorted(after.keys() ^ before.keys()) or 'a file was changed'}"
    return Answer(status, out.getvalue(), err.getvalue(), broken)


def _judged(status: int | None, out: str, err: str) -> str:
    """What a status and an output break of the rule."""
    if status not in (None, *STATUSES):
        return f"status: {status}\n{err[-500:]}"
    theirs = re.search(r"\.py:\d+", err)  # a line of the user's code, below which its traceback stands
    if "Traceback" in err + out and "Exception ignored in" not in err and not theirs:
        return f"stack: shown\n{err[-500:]}"
    lines = [line for line in err.splitlines() if not line.startswith(("note", "warning"))]
    if status == 2 and (not lines or (len(lines) > 1 and not theirs)):
        return f"lines: {len(lines)} for a refusal\n{err[-500:]}"
    return ""


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of everything in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, 0 if path.is_dir() else status.st_mtime_ns)
    return found


def place(error: BaseException) -> str:
    """The innermost place in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/fedtune/" in f.filename and "site-packages" not in f.filename]
    return f"at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""


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
