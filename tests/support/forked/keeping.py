"""The forks of a process: what comes for one is passed on to it, and how it ends is told."""

import os
import select
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fork:
    """A child, and the connection to the process that it stands for, if it stands for one."""

    pid: int
    connection: socket.socket | None
    note: Path


class Forks:
    """The forks of this process.

    One fork for each, not two: a process that has imported PyTorch takes 20 ms for a fork, for its tables of memory.
    """

    def __init__(self, folder: Path) -> None:
        """folder: where a file of each fork names the process that it stands for."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody hears how they end
        self._folder = folder
        self._of: dict[int, Fork] = {}  # by a descriptor of the process
        self._process: dict[int, int] = {}  # that descriptor, by its connection's

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._of)

    @property
    def descriptors(self) -> list[int]:
        """What is to be served when it can be read."""
        return [*self._of, *self._process]

    def fork(self, connection: socket.socket | None = None, stands_for: int = 0) -> int:
        """Fork, and tell the process at the other end that it has a fork; the child has 0, and no forks."""
        pid = os.fork()
        if pid == 0:
            for descriptor, fork in self._of.items():
                os.close(descriptor)
                if fork.connection:
                    fork.connection.close()
            self._of, self._process = {}, {}
            return 0
        fork = Fork(pid, connection and connection.dup(), self._folder / str(pid))
        descriptor = os.pidfd_open(pid)
        self._of[descriptor] = fork
        if fork.connection:
            self._process[fork.connection.fileno()] = descriptor
            fork.note.write_text(str(stands_for))
            with suppress(OSError):  # the other end may be gone
                fork.connection.send(b"forked")
        return pid

    def serve(self, ready: Iterable[object]) -> None:
        """Pass signals on to forks, and tell the ends of those that have ended."""
        for descriptor in ready:
            if descriptor in self._process:
                process = self._process[descriptor]
                number = _heard(self._of[process].connection)
                if number == signal.SIGKILL:  # nothing comes after it
                    del self._process[descriptor]
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
            elif descriptor in self._of:
                self._end(descriptor)

    def serve_all(self) -> None:
        """Serve them until all have ended."""
        while self:
            self.serve(select.select(self.descriptors, [], [])[0])

    def _end(self, descriptor: int) -> None:
        fork = self._of.pop(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        os.close(descriptor)
        if fork.connection:
            self._process.pop(fork.connection.fileno(), None)
            fork.note.unlink(missing_ok=True)  # the folder may be gone
            with suppress(OSError):
                fork.connection.send(b"%d" % status)
            fork.connection.close()


def _heard(connection: socket.socket) -> int:
    """The signal that came to the process at the other end; that it is gone can only mean the one nobody hears."""
    try:
        return int(connection.recv(16) or signal.SIGKILL)
    except OSError:
        return signal.SIGKILL
