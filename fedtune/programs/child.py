"""A running program: its output as lines, how it ended, and the end of all that it started.

`keeper.py` is its parent: it ends all when this process asks or is gone.  A line goes from the program through a pipe
to `Child.lines`; nothing is read while nobody asks for it, and a program that fills the pipe waits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedtune.programs import keeper, output

CHUNK = 2**16
PIPE = 2**20  # bytes that wait in the pipe, so that a program that prints much seldom waits for its reader
LONGEST = 3600.0  # seconds of a wait
LOOK = 0.05  # seconds between two looks at the clock while something is to end
PAUSES = 30.0  # seconds in which the keeper must have stopped everything
ENDS = 15.0  # seconds in which the keeper must have ended everything


class Child:
    """A program that was started."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        pty: bool = False,
        holds: Sequence[int] = (),
    ) -> None:
        """OSError if it cannot be started at all.

        folder: where it runs; log: the file for its last output; holds: open files that stay open until all its
        processes are gone.
        """
        self.heard = time.monotonic()  # when there was output last
        self.exit_status: int | None = None  # negative: the signal that ended it; None: it runs, or nobody knows
        self.failure = 0  # the errno with which it could not be started
        self._over = False  # it and all that it started have ended, and all output was read
        self._lines: list[str] = []
        self._rest = b""  # of a line that has not ended
        self._keeper = 0  # its number, when it has said it
        self._paused = False
        self._log = open(log, "w+b", buffering=0)
        self._output, writes = os.openpty() if pty else os.pipe()
        if pty:
            termios.tcsetwinsize(writes, (50, 200))
        else:
            with suppress(OSError):  # more than this user may have
                fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE)
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(int(pty)), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=writes,
            pass_fds=tuple(holds),
            cwd=folder,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        os.close(writes)
        started.wait()  # the keeper is its child, and goes on
        assert started.stdin and started.stdout
        self._asks, self._says = started.stdin, started.stdout
        self._open = {self._output, self._says.fileno()}
        self._poll = select.poll()
        for descriptor in self._open:
            self._poll.register(descriptor, select.POLLIN)

    @property
    def ended(self) -> bool:
        """Whether it and all that it started have ended, and `lines` has given all lines."""
        return self._over and not self._lines

    def lines(self, seconds: float) -> list[str]:
        """What it printed since the last call; if there is nothing yet, what comes within some seconds."""
        if not self._lines:
            self._take(seconds)
        lines, self._lines = self._lines, []
        return lines

    def pause(self) -> None:
        """Stop its processes until `go_on`."""
        self._paused, end = False, time.monotonic() + PAUSES
        self._ask(b"p")
        while not (self._paused or self._over) and time.monotonic() < end:
            self._take(LOOK)

    def go_on(self) -> None:
        """After a pause, also one that may come late."""
        self._ask(b"c")

    def close(self) -> None:
        """End all its processes; may be called twice."""
        self._asks.close()
        end = time.monotonic() + ENDS
        while not self._over:
            self._take(LOOK)  # so that it need not wait with what it prints last
            if self._keeper and time.monotonic() > end:  # it was stopped, or waits for a broken disk
                with suppress(OSError):
                    os.kill(self._keeper, signal.SIGKILL)

    def _ask(self, what: bytes) -> None:
        with suppress(OSError):  # the keeper is gone
            self._asks.write(what)

    def _take(self, seconds: float) -> bool:
        """Take what it printed and what its keeper says, or wait for something; whether there was anything."""
        ready = self._poll.poll(min(max(0.0, seconds), LONGEST) * 1000) if not self._over else []
        for descriptor, _ in ready:
            content = _read(descriptor)
            if not content:
                self._poll.unregister(descriptor)
                self._open.remove(descriptor)
            if descriptor == self._says.fileno():
                self._hear(content.decode())
            else:
                self.heard = time.monotonic()
                output.keep(self._log, content)
                lines, self._rest = output.cut(self._rest + content)
                self._lines += lines
        # without a keeper what was printed is there already, if a process that nobody can end does hold the other end
        if not self._over and self._says.fileno() not in self._open and (self._output not in self._open or not ready):
            self._end()
        return bool(ready)

    def _hear(self, said: str) -> None:
        """What the keeper says; "" if it has ended."""
        for word, _, number in (line.partition(" ") for line in said.splitlines()):
            if word == "keeper":
                self._keeper = int(number)
            elif word == "ended":
                self.exit_status = int(number)
            elif word == "failed":
                self.failure = int(number) or errno.ENOEXEC
            self._paused |= word == "paused"
        if not said:  # if it was killed something is left
            keeper.end_all(lambda: _kept_by(self._keeper))

    def _end(self) -> None:
        self._over = True
        if self.exit_status == 0:  # otherwise its last line may be cut, and a number that is cut is another
            self._lines += output.cut(self._rest + b"\n")[0]
        self._log.close()
        os.close(self._output)
        self._says.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:  # a terminal that nobody writes to any more
        return b""


def _kept_by(number: int) -> list[int]:
    """What a keeper that was killed has kept."""
    found, mark = [], f"{keeper.MARK}={number}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(name))
    return found
