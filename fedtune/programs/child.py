"""A running program: its processes, its output as lines, and how it ended.

`keeper.py` stands between: it ends the program and all that it started when this process asks or is gone.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fedtune.programs import keeper
from fedtune.programs.output import LineCutter, Log

CHUNK = 2**16
PIPE = 2**20  # bytes that wait in the pipe, so that a program that prints much seldom waits for its reader
LOOK = 0.03  # seconds between two looks at files
IDLE = 0.3  # seconds to wait for output where there are no files
CLOSED = 1.0  # seconds of silence to wait for the end of the output after all processes are said to be gone
PAUSES = 30.0  # seconds in which the keeper must have stopped everything
DRAINS = 2.0  # seconds in which what is in the pipe is read
ENDS = 15.0  # seconds in which the keeper must have ended everything


class Listener(Protocol):
    """Who is told what the program prints and writes, in a thread of its own."""

    looks: bool  # whether there are files to look at

    def line(self, line: str) -> None:
        """A line that it printed."""

    def look(self) -> bool:
        """Look at files that it writes; whether something was new."""

    def ended(self, whole: bool) -> None:
        """The program and all that it started have ended, and all output was read; whole: its last line too."""


class Child:
    """A program that was started."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        listener: Listener,
        pty: bool = False,
        reads: bool = False,
        holds: Sequence[int] = (),
    ) -> None:
        """folder: where it runs; log: the file for its last output; reads: whether `send` will have lines for it;
        holds: open files that stay open until all processes are gone.
        """
        self.heard = time.monotonic()  # when there was output last
        self.exit_status: int | None = None  # negative: the signal that ended it; None: it runs, or nobody knows
        self.failure = 0  # the errno with which it could not be started
        self._listener, self._log, self._paused = listener, Log(log), threading.Event()
        self._output, writes = os.openpty() if pty else os.pipe()
        given, self._lines = os.pipe() if reads else (0, 0)
        _widen(self._output, writes, pty)
        spec = marshal.dumps(
            {
                "command": list(command),
                "folder": str(folder),
                "environment": dict(environment),
                "output": writes,
                "input": given,
                "pty": pty,
            }
        )
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=writes,
                pass_fds=(writes, *([given] if reads else []), *holds),
                start_new_session=True,
                bufsize=0,
                cwd="/",
            )
        except OSError:
            _close(self._output, self._lines)
            self._log.close()
            raise
        finally:
            _close(writes, given)
        self._tell(b"%d\n" % len(spec) + spec)
        self._reader = threading.Thread(target=self._read, daemon=True, name="program's output")
        self._reader.start()

    @property
    def running(self) -> bool:
        """Whether some of its processes or output may still be there."""
        return self._reader.is_alive()

    def listen(self, listener: Listener, log: Path) -> None:
        """From now on tell another listener; the output until now was the last one's."""
        end = time.monotonic() + DRAINS
        while _waiting(self._output) and time.monotonic() < end:
            time.sleep(0.001)
        self._listener, self._log, before = listener, Log(log), self._log
        self.heard = time.monotonic()
        before.close()

    def send(self, line: bytes) -> None:
        """Give it a line to read."""
        with suppress(OSError):  # it ended, which its reader tells
            os.write(self._lines, line + b"\n")

    @property
    def processes(self) -> list[int]:
        """The program and all that it started, with their keeper."""
        return keeper.below(self._keeper.pid)

    def pause(self) -> bool:
        """Stop its processes until `go_on`, with all that they printed read; whether that was possible in time."""
        self._paused.clear()
        self._tell(b"p")
        if not self._paused.wait(PAUSES):
            return False
        end = time.monotonic() + DRAINS
        while _waiting(self._output) and time.monotonic() < end:
            time.sleep(0.001)
        return self.exit_status is None

    def go_on(self) -> None:
        """After a pause, also one that may come late."""
        self._tell(b"c")

    def close(self) -> None:
        """End all its processes; may be called twice."""
        lines, self._lines = self._lines, 0
        _close(lines)
        with suppress(OSError, ValueError):
            assert self._keeper.stdin
            self._keeper.stdin.close()
        try:
            self._keeper.wait(ENDS)
        except subprocess.TimeoutExpired:  # the program stopped its keeper; or it waits for a broken disk
            for pid in self.processes:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._keeper.kill()
            self._keeper.wait()
        self._reader.join(CLOSED * 2)

    def _tell(self, words: bytes) -> None:
        assert self._keeper.stdin
        with suppress(OSError, ValueError):  # the keeper is gone, or was told to end
            view = memoryview(words)
            while view:
                view = view[self._keeper.stdin.write(view) :]

    def _read(self) -> None:
        """The reader's thread, until all output was read and all processes are gone."""
        lines = LineCutter()
        try:
            self._read_all(lines)
            if self.exit_status == 0:  # otherwise its last line may be cut, and a number that is cut is another
                _each(self._listener.line, lines.end())
        finally:
            self._log.close()
            os.close(self._output)
            self._keeper.wait()
            self._listener.ended(whole=self.exit_status == 0)

    def _read_all(self, lines: LineCutter) -> None:
        assert self._keeper.stdout
        status = self._keeper.stdout.fileno()
        poll, open_ones = select.poll(), {self._output, status}
        for descriptor in open_ones:
            poll.register(descriptor, select.POLLIN)
        said, looked, give_up = b"", 0.0, 0.0
        while open_ones:
            ready = poll.poll((LOOK if self._listener.looks else IDLE) * 1000)
            if give_up and not ready and time.monotonic() > give_up:
                break
            for descriptor, _ in ready:
                content = _read(descriptor)
                if not content:
                    poll.unregister(descriptor)
                    open_ones.remove(descriptor)
                    give_up = time.monotonic() + CLOSED if descriptor == status else give_up
                elif descriptor == status:
                    said = self._hear(said + content)
                else:
                    self.heard = time.monotonic()
                    self._log.write(content)
                    _each(self._listener.line, lines.take(content))
            if self._listener.looks and time.monotonic() - looked >= LOOK:
                self.heard = time.monotonic() if self._listener.look() else self.heard
                looked = time.monotonic()

    def _hear(self, said: bytes) -> bytes:
        """Take what the keeper says; the rest that is no whole line yet."""
        *whole, rest = said.split(b"\n")
        for line in whole:
            word, _, number = line.partition(b" ")
            if word == b"ended":
                self.exit_status = int(number)
            elif word == b"failed":
                self.failure = int(number) or errno.ENOEXEC
            elif word == b"paused":
                self._paused.set()
        return rest


def _close(*descriptors: int) -> None:
    """Close those that are there."""
    for descriptor in filter(None, descriptors):
        os.close(descriptor)


def _each(take: Callable[[str], None], lines: Iterable[str]) -> None:
    for line in lines:
        take(line)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:  # a terminal that nobody writes to any more
        return b""


def _waiting(descriptor: int) -> bool:
    try:
        found = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return False
    return any(found)


def _widen(reads: int, writes: int, pty: bool) -> None:
    if pty:
        termios.tcsetwinsize(writes, (50, 200))
        return
    with suppress(OSError):  # more than this user may have
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE)
