"""Report a user's function that ends the command's own process (as opposed to a worker's).

os._exit in a user's line becomes an error like any other.  A crash leaves a stack, and a killed process leaves nothing.
So a small watcher process says in one line which function was being called.  The watcher is this file, run as a script.
"""

from __future__ import annotations

import faulthandler
import os
import re
import select
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

_real_exit = os._exit


class _Watch:
    """What this process leaves for the watcher, in files, because a crash leaves no time to send anything."""

    def __init__(self, paths: Collection[str]) -> None:
        self.paths, self.pid = paths, os.getpid()
        self.what, self.files = b"", b""
        self.note: Any = None

    def start(self) -> None:
        import subprocess

        self.note, self.crash = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        told, self.open = os.pipe()  # closes when this process ends, for systems without pidfd
        given = [str(number) for number in (os.getpid(), self.note.fileno(), self.crash.fileno())]
        self.watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *given],
            stdin=told,
            stdout=subprocess.DEVNULL,
            pass_fds=(self.note.fileno(), self.crash.fileno()),
            start_new_session=True,  # so that it does not receive Ctrl-C
        )
        os.close(told)
        faulthandler.enable(self.crash, all_threads=False)

    def write(self, what: bytes) -> None:
        self.what = what
        if len(self.paths) != self.files.count(b"\0"):
            self.files = b"".join(os.fsencode(path) + b"\0" for path in self.paths)
        os.pwrite(self.note.fileno(), b"%d %d\n%b%b" % (len(what), len(self.files), what, self.files), 0)


_watch: _Watch | None = None


def watch(paths: Collection[str]) -> None:
    """From now on, report what ends this process inside a user's function.  paths: all user files (a live set)."""
    global _watch
    faulthandler.enable(all_threads=False)  # until there is a watcher
    if sys.platform == "linux":
        _watch, os._exit = _Watch(paths), _exit


@contextmanager
def during(what: str) -> Iterator[None]:
    """While a user's function is called.  what: the message if the process ends meanwhile."""
    if _watch is None or _watch.pid != os.getpid():
        yield
        return
    before = _watch.what
    with suppress(OSError):
        if _watch.note is None:
            _watch.start()
        _watch.write(what.encode())
    try:
        yield
    finally:
        with suppress(OSError, AttributeError):  # where the watcher could not be started
            _watch.write(before)


def _exit(status: int) -> NoReturn:
    """Replaces os._exit: in a user's line it raises SystemExit, except in a thread, where nobody would catch it."""
    if _watch and _watch.pid == os.getpid():
        caller = sys._getframe(1)
        if caller.f_code.co_filename in _watch.paths:
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(status)
            status = 2
        elif caller.f_globals.get("__name__", "").startswith("fedtune."):  # fedtune has already said why
            with suppress(Exception):
                _watch.write(b"")
    _real_exit(status)


def _last_word(pid: int, note: int, crash: int) -> str:
    """Wait for the process to end; return the message to print, if any."""
    waited = [0]
    with suppress(OSError, AttributeError):  # it may be gone already, or the system is too old
        waited.append(os.pidfd_open(pid))
    select.select(waited, [], [])
    sizes, _, rest = os.pread(note, 2**20, 0).partition(b"\n")
    long, files = map(int, sizes.split())
    what = rest[:long].decode(errors="replace")
    paths = {os.fsdecode(path) for path in rest[long : long + files].split(b"\0")}
    stack = os.pread(crash, 2**20, 0).decode(errors="surrogateescape")
    for file, line in re.findall(r'File "(.*)", line (\d+)', stack):
        if file in paths:
            how = stack.partition("\n")[0].partition(": ")[2]
            return f"error: {what + ': ' if what else ''}{file}:{line}: it ends the program: {how}"
    if what and not stack:
        return f"error: {what}: it ended the program, or the program was killed meanwhile"
    return stack


if __name__ == "__main__":
    if word := _last_word(*map(int, sys.argv[1:])):
        with suppress(OSError):
            os.write(2, f"{word}\n".encode(errors="backslashreplace"))
