"""Import a user's file in a child process first, to report an import that ends the process.

A crash, os._exit or a signal during the import would end any process that imports the file, without a message.
An ordinary error is left alone: it is raised again here, with its stack.  The child is a fork, as in PyTorch's
DataLoader, and cheap.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import say, several
from fedtune.user_code import user_imports
from fedtune.user_code.user_imports import UserFile

PATIENCE = 10.0  # seconds of an import before a note says that it is still running
HEAVY = (
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "torch",
    "torchvision",
)  # imported here first, so that the fork need not import them again
_FORK = sys.platform == "linux"
_ENDED, _FORKED = b"ended", b"forked"


def tried(name: str, files: Mapping[str, UserFile]) -> None:
    """Import one of these files in a child; UserError if it ends the child.  Ctrl-C ends the child too."""
    if not _FORK:
        return
    path, roots = files[name].path, user_imports.roots(files)
    for root in HEAVY:
        if root in roots:
            with suppress(Exception):  # reported when the file itself imports it
                __import__(root)
    with suppress(AttributeError, ValueError, OSError):
        sys.stdout.flush()  # otherwise the child may write its copy of the buffer too
    end = _end(path, lambda tells, crash: _forked(name, files, tells, crash))
    if end.ended_by_signal and len(os.listdir("/proc/self/task")) > 1:
        # a fork lacks the threads that its parent's libraries rely on: that may have crashed it, not the file
        end = _end(path, lambda tells, crash: _fresh(name, files, tells, crash))
    if _FORKED in end.last:
        raise UserError("it forks while it is imported, so two processes would continue; fork inside a function")
    if _ENDED not in end.last:
        raise UserError(f"it ends the program while it is imported, {_how(end.status)}{_where(end.crash, path)}")


class _End(NamedTuple):
    """How a child ended."""

    status: int
    last: bytes  # the last bytes it sent
    crash: str  # the stack of a crash

    @property
    def ended_by_signal(self) -> bool:
        return _ENDED not in self.last and os.WIFSIGNALED(self.status)


def _end(path: str, begin: Callable[[int, int], int]) -> _End:
    """Start a child and wait for its end.  begin: gets the descriptors for its last words and for its stack."""
    told, tells = os.pipe()
    with tempfile.TemporaryFile() as crash, open(told, "rb") as ear:
        try:
            status = _waited(lambda: begin(tells, crash.fileno()), path)
        finally:
            os.close(tells)
        os.set_blocking(told, False)
        last = ear.read() or b""
        crash.seek(0)
        return _End(status, last, crash.read().decode(errors="replace"))


def _forked(name: str, files: Mapping[str, UserFile], tells: int, crash: int) -> int:
    torch, threads = sys.modules.get("torch"), 1
    if torch and (threads := torch.get_num_threads()) > 1:
        torch.set_num_threads(1)  # here, because in a fork, which has no threads to end, this crashes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about threads: this child needs nothing that they hold
            pid = os.fork()
        if not pid:
            _child(lambda: user_imports.module(name, files), tells, crash)
    finally:
        if torch and threads > 1:
            torch.set_num_threads(threads)
    return pid


def _fresh(name: str, files: Mapping[str, UserFile], tells: int, crash: int) -> int:
    """Start the child in a fresh interpreter."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _asked; _asked({tells}, {crash})"
    with tempfile.TemporaryFile() as asked:
        pickle.dump((name, dict(files)), asked)
        asked.seek(0)
        words = [sys.executable, "-c", program]
        return subprocess.Popen(words, stdin=asked, pass_fds=(tells, crash), start_new_session=True).pid


def _asked(tells: int, crash: int) -> NoReturn:
    name, files = pickle.load(sys.stdin.buffer)
    _child(lambda: user_imports.module(name, files), tells, crash)


def _child(imports: Callable[[], Any], tells: int, crash: int) -> NoReturn:
    """Import, report that it is done, and end, without running, writing or cleaning up anything of the parent's."""
    import fcntl  # not available on every system

    me, forks = os.getpid(), [0]
    gc.freeze()  # what an object of the parent's does when it is collected may wait for a lock of another thread there
    try:
        # not 0 to 2: if the parent had no standard streams, these descriptors may have their numbers
        tells, crash = (fcntl.fcntl(number, fcntl.F_DUPFD, 3) for number in (tells, crash))
        if os.getpgrp() != me:
            os.setpgid(0, 0)  # signals that it sends to its group must not reach the parent
        for number in (signal.SIGINT, *interrupting.NUMBERS):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))
        faulthandler.disable()  # others may have installed handlers over it since
        faulthandler.enable(crash, all_threads=False)
        ends: list[Callable[[], Any]] = []  # only the file's own: clearing the parent's may crash

        def register(f: Callable[..., Any], *args: Any, **named: Any) -> Callable[..., Any]:
            ends.append(lambda: f(*args, **named))
            return f

        vars(atexit)["register"] = register
        os.register_at_fork(after_in_parent=lambda: forks.append(forks.pop() + 1))
        with suppress(BaseException):
            imports()
        for at_end in reversed(ends):
            with suppress(BaseException):
                at_end()
        if os.getpid() != me:
            os.write(tells, _FORKED)
        elif forks[0]:
            time.sleep(0.2)  # the other process may reach the end too, and then reports it
    finally:
        with suppress(OSError):
            os.write(tells, _ENDED)
        os._exit(0)


def _waited(begin: Callable[[], int], path: str) -> int:
    """The exit status of a child that begins now; one that stops itself is killed."""
    since, pause, said, pid = time.monotonic(), 0.0005, False, 0
    try:
        with interrupting.deferred():  # what is raised within os.fork may be lost, in a hook of some module
            pid = begin()
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
        if pid:  # 0 would be this process's own group
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
    """The innermost line of the file, or of one beside it, in a crash's stack."""
    for file, line in re.findall(r'File "(.*)", line (\d+)', crash):
        if Path(file).is_relative_to(Path(path).parent):
            return f", at {Path(file).name}:{line}"
    return ""
