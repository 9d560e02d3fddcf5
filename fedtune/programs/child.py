"""A running program: its output as lines, how it ended, and the end of all that it started.

`keeper.py` is its parent: it ends all when this process asks or is gone.  A line goes from the program through a pipe
to `Child.lines`; nothing is read while nobody asks for it, and a program that fills the pipe waits.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtune.programs import keeper, output

CHUNK = 2**16
LONGEST = 3600.0  # seconds of a wait
LOOK = 0.05  # seconds between two looks at the clock while something is to end
ENDS = 15.0  # seconds in which the keeper must have ended everything


class Child:
    """A program that was started."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, log: Path, pty: bool, hold: int
    ) -> None:
        """log: the file for its last output; hold: an open file that stays so until all its processes are gone."""
        self.heard = time.monotonic()  # when there was output last
        self.exit_status: int | None = None  # negative: the signal that ended it; None: it runs, or nobody knows
        self._over = False  # it and all that it started have ended, and all output was read
        self._lines, self._rest = list[str](), b""  # the rest: of a line that has not ended
        self._keeper, self._log = 0, open(log, "w+b", buffering=0)  # the keeper's number, when it has said it
        self._output, writes = os.openpty() if pty else os.pipe()
        if pty:
            termios.tcsetwinsize(writes, (50, 200))
        started = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(int(pty)), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=writes,
            pass_fds=(hold,),
            cwd=folder,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        os.close(writes)
        started.wait()  # the keeper is its child, and goes on
        assert started.stdin and started.stdout
        self._wants, self._says = started.stdin, started.stdout
        self._selector = selectors.PollSelector()  # of what is open
        for source in (self._output, self._says):
            self._selector.register(source, selectors.EVENT_READ)

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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Its processes are stopped meanwhile."""
        self._send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._send(signal.SIGCONT)

    def close(self) -> None:
        """End all its processes; may be called twice."""
        self._wants.close()
        end = time.monotonic() + ENDS
        while not self._over:
            self._take(LOOK)  # so that it need not wait with what it prints last
            if self._keeper and time.monotonic() > end:  # it was stopped, or waits for a broken disk
                with suppress(OSError):
                    os.kill(self._keeper, signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._keeper and not self._over:  # the number of one that has not said it, or is gone, means others
            keeper.send(keeper.below(self._keeper), number)

    def _take(self, seconds: float) -> None:
        """Take what it printed and what its keeper says, or wait for something."""
        ready = [] if self._over else self._selector.select(min(seconds, LONGEST))
        for key, _ in ready:
            content = _read(key.fd)
            if not content:
                self._selector.unregister(key.fileobj)
            if key.fileobj == self._says:
                self._hear(content.decode())
            else:
                self.heard = time.monotonic()
                output.keep(self._log, content)
                lines, self._rest = output.cut(self._rest + content)
                self._lines += lines
        # without a keeper what was printed is there already, if a process that nobody can end does hold the other end
        is_open = self._selector.get_map()
        if not self._over and self._says not in is_open and (self._output not in is_open or not ready):
            self._end()

    def _hear(self, said: str) -> None:
        for word, _, number in (line.partition(" ") for line in said.splitlines()):
            if word == "keeper":
                self._keeper = int(number)
            elif word == "ended":
                self.exit_status = int(number)
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
    found, mark = [], f"{keeper.MARK}={number}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(name))
    return found
