"""Keeps a program's processes: starts it, and ends them all when it is no longer wanted.

`child.py` runs this file beside each program, in its folder and environment: python keeper.py PTY COMMAND…
Its stdin is open as long as the program is wanted, so all ends with whoever started it, also after SIGKILL.
Its stderr is the program's output.  What the program leaves behind becomes its child, daemons too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress

MARK = "FEDTUNE_KEEPER"  # its number, in the environment of all that it keeps
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINGER, POLITE = 0.5, 1.5  # seconds before SIGTERM for what a program left behind, and from SIGTERM to SIGKILL
CLEANS, GIVES_UP = 11.5, 13.0  # seconds after SIGTERM in which shared memory must be clean, and all must be gone
LOOK = 0.01  # seconds between two looks
prctl = ctypes.CDLL(None).prctl
_statuses: dict[int, int] = {}


def main(pty: bool, command: list[str]) -> None:
    """Start the program and keep it; on stdout it says its own number, and how the program ends."""
    if os.fork():  # it is nobody's child, as Ray kills the children of a worker that ends, and this one must outlive it
        os._exit(0)
    _say(f"keeper {os.getpid()}")
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # and not ignored, as the program would then ignore it too
    child, wanted = _start(pty, command), True
    while wanted:
        ready, _, _ = select.select([0, woken], [], [])
        wanted = 0 not in ready
        if woken in ready:
            wanted &= signal.SIGTERM not in os.read(woken, 4096)
            _left()
            if child in _statuses:
                _say(f"ended {os.waitstatus_to_exitcode(_statuses[child])}")
                wanted = False
    end_all(_left, LINGER if child in _statuses else 0)


def _start(pty: bool, command: list[str]) -> int:
    """The program, in a session of its own; it dies with its keeper."""
    os.environ[MARK] = str(os.getpid())
    if child := os.fork():
        return child
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if pty:
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]} could not be started: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def _left() -> list[int]:
    """All processes below this one; the statuses of its children that have ended are kept."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _statuses.update([ended])
    return below(os.getpid())


def end_all(left: Callable[[], list[int]], linger: float = 0) -> None:
    """Ask processes to end, then kill them; those that clean shared memory end by themselves after the others."""
    began, asked = time.monotonic() + linger, False
    while (pids := left()) and (seconds := time.monotonic() - began) < GIVES_UP:
        if seconds > POLITE:
            send(pids, signal.SIGKILL, cleaners=seconds > CLEANS)
        elif seconds >= 0 and not asked:
            send(pids, signal.SIGTERM)
            send(pids, signal.SIGCONT)
            asked = True
        time.sleep(LOOK)


def _cleans(pid: int) -> bool:
    """Whether it is multiprocessing's or PyTorch's process that removes what others leave in shared memory."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read()
    return b"resource_tracker import main" in words or words.split(b"\0")[0].endswith(b"torch_shm_manager")


def send(pids: list[int], number: int, cleaners: bool = False) -> None:
    """Send a signal to processes, to those that clean shared memory only if that is said."""
    for pid in pids:
        with suppress(OSError):
            if cleaners or not _cleans(pid):
                os.kill(pid, number)


def _say(line: str) -> None:
    with suppress(OSError):  # whoever listened is gone
        os.write(1, f"{line}\n".encode())


def below(process: int) -> list[int]:
    """Every process below another, whatever its group or session."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found = list(children.get(process, []))
    for pid in found:
        found += children.get(pid, [])
    return found


if __name__ == "__main__":
    main(sys.argv[1] == "1", sys.argv[2:])
