"""A user's file as it is first imported: in a child, of which the end is told, before it is imported here.

What ends the child would end whoever imports the file, without a word: a crash, os._exit, a signal.  An ordinary error
is no end: it comes again here, with its stack.  The child is a fork, as PyTorch's DataLoader makes them, and cheap.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import re
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from fedtune.core.errors import UserError
from fedtune.core.terminal import say, several

PATIENCE = 10.0  # seconds of an import before it is said that one is waited for
HEAVY = ("numpy", "pandas", "scipy", "sklearn", "torch", "torchvision")  # what a file may import, once for both
_FORK = sys.platform == "linux"
_ENDED, _FORKED = b"ended", b"forked"


def tried(path: str, imports: Callable[[], Any], roots: Collection[str]) -> None:
    """Import in a child; UserError for a file that ends it, and Ctrl-C ends the child too.

    path: of the file.  roots: packages that it says it imports.
    """
    if not _FORK:
        return
    for root in HEAVY:
        if root in roots:
            with suppress(Exception):  # it is told where it is imported
                __import__(root)
    with suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()  # or the child's copy may be written too
    told, tells = os.pipe()
    with tempfile.TemporaryFile() as crash, open(told, "rb") as ear:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's on threads: this child needs nothing that they hold
            pid = os.fork()
        if not pid:
            _child(imports, tells, crash.fileno())
        os.close(tells)
        status = _waited(pid, path)
        os.set_blocking(told, False)
        last = ear.read() or b""
        crash.seek(0)
        where = _where(crash.read().decode(errors="replace"), path)
    if _FORKED in last:
        raise UserError("it forks as it is imported, and two would go on from there; fork in a function")
    if _ENDED not in last:
        raise UserError(f"it ends the program as it is imported, {_how(status)}{where}")


def _child(imports: Callable[[], Any], tells: int, crash: int) -> NoReturn:
    """Import, say so and end: nothing of the parent's is run, written or cleared up here."""
    import fcntl  # which not every system has

    me, forks = os.getpid(), [0]
    try:
        # beyond the standard ones: of a parent that has none of these, they may be in their place
        tells, crash = (fcntl.fcntl(number, fcntl.F_DUPFD, 3) for number in (tells, crash))
        os.setpgid(0, 0)  # what it sends to its group is not for the parent
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))
        faulthandler.disable()  # others may have put their handlers over it since
        faulthandler.enable(crash, all_threads=False)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # the parent's threads are not here
        vars(atexit)["_clear"]()
        os.register_at_fork(after_in_parent=lambda: forks.append(forks.pop() + 1))
        with suppress(BaseException):
            imports()
        with suppress(BaseException):
            vars(atexit)["_run_exitfuncs"]()
        if os.getpid() != me:
            os.write(tells, _FORKED)
        elif forks[0]:
            time.sleep(0.2)  # the other may come to its end, and says so then
    finally:
        with suppress(OSError):
            os.write(tells, _ENDED)
        os._exit(0)


def _waited(pid: int, path: str) -> int:
    """The status that the child ended with; one that stops itself is ended."""
    since, pause, said = time.monotonic(), 0.0005, False
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and not os.WIFSTOPPED(status):
                return status
            if ended:
                os.kill(pid, signal.SIGKILL)
            if not said and time.monotonic() - since > PATIENCE:
                said = True
                say(f"note: {path} has been importing for {several(round(PATIENCE), 'second')}; Ctrl-C ends it")
            select.select([], [], [], pause)
            pause = min(2 * pause, 0.02)
    except BaseException:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"by signal {number} ({signal.strsignal(number)})"
    return f"with status {os.WEXITSTATUS(status)}"


def _where(crash: str, path: str) -> str:
    """The innermost line of the file or of one beside it in a crash's stack."""
    for file, line in re.findall(r'File "(.*)", line (\d+)', crash):
        if Path(file).is_relative_to(Path(path).parent):
            return f", at {Path(file).name}:{line}"
    return ""
