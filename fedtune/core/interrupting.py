"""How a command ends before its end: by SIGTERM as by Ctrl-C, or with a last word where it can only be ended."""

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

STATUS = 130  # of a command that was interrupted
_last_words: list[Callable[[str], None]] = []  # of the process: whoever is at work, the innermost last
_signalled = threading.Event()
_ending = threading.Lock()  # of whoever ends the process, the first


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM, with which batch systems and containers end a job, is Ctrl-C meanwhile, to whoever hears that now.

    Once: some send it to a process and to its group.  Only the main thread hears signals; in another this does nothing.
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
    """Ctrl-C is afterwards heard by whoever heard it before: Tune's ear stays where nobody pressed it, and is deaf."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_with_parent() -> None:
    """This process, which another spawned, ends when that one does, and by Ctrl-C without a word.

    A pool's processes would wait for work forever where their parent is killed.
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
    """What is written down and said of a run that `end` ends meanwhile, given why it does."""
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


def end(why: str) -> NoReturn:
    """End the process, which waits for what will not come; for any of its threads."""
    with _ending:
        for say in reversed(_last_words):
            with suppress(Exception):  # of a disk that is full, say: the others have theirs to say
                say(why)
        with suppress(OSError, ValueError):
            print(f"stopped: {one_line(why)}", file=sys.stderr, flush=True)
        os._exit(STATUS if _signalled.is_set() else 1)
