"""How a command ends early: on SIGTERM as on Ctrl-C, and with a last message if the process must be ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from fedtune.core.terminal import one_line

STATUS = 130  # exit status of an interrupted command
_last_words: list[Callable[[str], None]] = []  # callbacks of the runs at work in this process, the innermost last
_signalled = threading.Event()
_ending = threading.Lock()  # held by the first thread that ends the process


@contextmanager
def terminable() -> Iterator[None]:
    """Handle SIGTERM, with which batch systems and containers end a job, like Ctrl-C during the block.

    Only the first counts: some systems send it to a process and to its group.  Only the main thread receives signals;
    in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    _signalled.clear()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    _signalled.set()
    heard = signal.getsignal(signal.SIGINT)
    if not callable(heard):  # ignored, as in the background of a script
        raise KeyboardInterrupt
    heard(signal.SIGINT, frame)


@contextmanager
def ctrl_c_kept() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block, because Tune leaves its own in place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """Make this spawned process end when its parent does, and on Ctrl-C without a message.

    Otherwise a pool's processes would wait for work forever after their parent is killed.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


@contextmanager
def last_words(say: Callable[[str], None]) -> Iterator[None]:
    """Register a callback that records and prints why a run ended, in case `end` ends the process."""
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


def end(why: str) -> NoReturn:
    """End the process, because it waits for something that will not come; any thread may call it."""
    with _ending:
        for say in reversed(_last_words):
            with suppress(Exception):  # for example a full disk: the other callbacks still run
                say(why)
        with suppress(OSError, ValueError):
            print(f"stopped: {one_line(why)}", file=sys.stderr, flush=True)
        os._exit(STATUS if _signalled.is_set() else 1)
