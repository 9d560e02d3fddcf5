"""Keeps a program's processes, and ends them all when it is told to, or when whoever started them is gone.

This file is run as a script, beside each program, with Python's own modules only: `child.py` starts it.  It reads what
to start from stdin, which stays open as long as the program is wanted.  Two processes watch one another: the keeper
adopts whatever the program leaves behind, daemons too, and its guard does the same if the keeper is killed.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINGER = 0.5  # seconds in which what a program left behind may end by itself
POLITE = 1.5  # seconds between SIGTERM and SIGKILL
FORCED = 2.0  # seconds in which all must be gone after SIGKILL
CLEANS = 10.0  # seconds in which what they left in shared memory must be removed then
LOOK = 0.02  # seconds between two looks
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Start the program and keep it; the guard's process waits for the keeper's."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = _read_spec()
    guarded, guard = os.pipe()
    keeper = os.fork()
    if keeper:
        os.close(guarded)
        _close(spec)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.waitpid(keeper, 0)
        _end_all(polite=0)
    else:
        os.close(guard)
        _Keeper(spec, guarded).keep()
    os._exit(0)


class _Keeper:
    """The program's parent: it says on stdout when the program ends, and does not end before all processes did."""

    def __init__(self, spec: dict, guarded: int) -> None:
        self.spec, self.guarded = spec, guarded
        self.status: int | None = None
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._heard)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.told_to_end = False
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def _heard(self, number: int, _frame: object) -> None:
        self.told_to_end |= number == signal.SIGTERM

    def keep(self) -> None:
        """Until the program ended or must end."""
        self.child = _start(self.spec)
        _close(self.spec)
        poll = select.poll()
        for descriptor in (0, self.guarded, self.woken):
            poll.register(descriptor, select.POLLIN)
        while self.status is None and not self.told_to_end:
            for descriptor, _ in poll.poll():
                self._read(descriptor)
            self._reap()
        if self.told_to_end:
            _end_all(POLITE)
        else:
            _wait_until_gone(LINGER)
            _end_all(POLITE)

    def _read(self, descriptor: int) -> None:
        try:
            said = os.read(descriptor, 4096)
        except BlockingIOError:
            return
        if descriptor == self.woken:
            return
        if not said or descriptor == self.guarded:  # its other end is closed: whoever held it is gone
            self.told_to_end = True
        elif said.endswith(b"p"):
            _signal_all(signal.SIGSTOP)
            _say("paused")
        else:
            _signal_all(signal.SIGCONT)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.child:
                    self.status = os.waitstatus_to_exitcode(status)
                    _say(f"ended {self.status}")


def _read_spec() -> dict:
    """What to start: a line with the length, then as many bytes."""
    head = b""
    while not head.endswith(b"\n"):
        if not (letter := os.read(0, 1)):
            os._exit(0)
        head += letter
    content = b""
    while len(content) < int(head):
        if not (part := os.read(0, int(head) - len(content))):
            os._exit(0)
        content += part
    return marshal.loads(content)


def _start(spec: dict) -> int:
    """The program, in a session of its own; it dies with the keeper."""
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(127)
        output = spec["output"]
        if spec["pty"]:
            import fcntl
            import termios

            fcntl.ioctl(output, termios.TIOCSCTTY, 0)
        lines = spec["input"] or os.open(os.devnull, os.O_RDONLY)
        status = os.dup(1)  # is closed where the program begins
        for given, standard in ((lines, 0), (output, 1), (output, 2)):
            os.dup2(given, standard)
        _close(spec)
        os.chdir(spec["folder"])
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])
    except BaseException as error:
        code = error.errno if isinstance(error, OSError) else 0
        with suppress(BaseException):
            os.write(status, f"failed {code}\n".encode())
    os._exit(127)


def _close(spec: dict) -> None:
    """Close what is the program's only; it has numbers above those of the standard streams."""
    for descriptor in filter(None, (spec["output"], spec["input"])):
        os.close(descriptor)


def _say(line: str) -> None:
    with suppress(OSError):  # whoever listened is gone
        os.write(1, f"{line}\n".encode())


def _end_all(polite: float) -> None:
    """End every process below this one: asked, and killed if that takes longer than `polite` seconds."""
    if polite:
        _signal_all(signal.SIGTERM, spared=_cleans)
        _signal_all(signal.SIGCONT)
        if _wait_until_gone(polite):
            return
    if _kill_all(spared=_cleans) and not _wait_until_gone(CLEANS):
        _kill_all()


def _kill_all(spared: Callable[[int], bool] = lambda pid: False) -> bool:
    """Whether all are gone but those that are spared."""
    end = time.monotonic() + FORCED
    while left := [pid for pid in below(os.getpid()) if not spared(pid)]:
        if time.monotonic() > end:
            return False
        _signal(left, signal.SIGKILL)
        _wait_until_gone(LOOK)
    return True


def _cleans(pid: int) -> bool:
    """Whether a process removes what others leave in shared memory, and ends by itself when they are gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read()
    except OSError:
        return False
    return b"resource_tracker import main" in words or words.split(b"\0")[0].endswith(b"torch_shm_manager")


def _wait_until_gone(seconds: float) -> bool:
    """Whether all processes below this one are gone in this time."""
    end = time.monotonic() + seconds
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(LOOK / 4)


def _signal_all(number: int, spared: Callable[[int], bool] = lambda pid: False) -> None:
    _signal([pid for pid in below(os.getpid()) if not spared(pid)], number)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def below(process: int) -> list[int]:
    """Every process below another, whatever its group or session."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(process, []))
    for pid in found:
        found += children.get(pid, [])
    return found


if __name__ == "__main__":
    main()
