"""How a command ends early: on SIGTERM as on Ctrl-C, and with a last message if the process must be ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from fedtune.core.terminal import one_line

STATUS = 130  # exit status of an interrupted command
NUMBERS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]
REPEAT_AFTER = 0.1  # seconds after which a lost interruption is repeated
_last_words: list[Callable[[str], None]] = []  # callbacks of the runs at work in this process, the innermost last
_signalled = threading.Event()
_ending = threading.Lock()  # held by the first thread that ends the process


@contextmanager
def terminable(to_the_end: bool = False) -> Iterator[None]:
    """Handle what batch systems, containers and closed terminals end a job with like Ctrl-C during the block.

    Only the first signal counts; one that is ignored, as by nohup, stays so.  In other threads nothing happens.
    to_the_end: the process ends after the block, and is not disturbed in that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: handler for number in NUMBERS if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    if handlers and _interrupt not in handlers.values():
        _signalled.clear()
    for number in handlers:
        signal.signal(number, _interrupt)
    unheard, sys.unraisablehook = sys.unraisablehook, _unheard
    try:
        yield
    finally:
        sys.unraisablehook = unheard
        for number, handler in handlers.items():
            if to_the_end:
                signal.signal(number, signal.SIG_IGN)
            elif handler is not _interrupt:  # an outer block's handler may have been called by now
                signal.signal(number, handler or signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for number_ignored in NUMBERS:
        signal.signal(number_ignored, signal.SIG_IGN)
    _signalled.set()
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:  # ignored, as in the background of a script
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Let Ctrl-C and its like wait for the end of the block, which would leave something half made."""
    signals: list[int] = []
    try:
        with restored(signal.SIGINT, *NUMBERS) as handlers:
            for number in filter(lambda n: callable(handlers[n]), handlers):
                signal.signal(number, lambda number, _: signals.append(number))
            yield
    finally:
        if signals:
            signal.raise_signal(signals[0])


@contextmanager
def restored(*numbers: int) -> Iterator[dict[int, Any]]:
    """The handlers of these signals, restored after the block; none but in the main thread, which receives signals."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: handler for number in numbers if is_main and (handler := signal.getsignal(number)) is not None}
    try:
        yield handlers
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _unheard(unraisable: Any) -> None:
    """What Python does with an error that it cannot raise, as in __del__; an interruption must not be lost."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        interrupt_again()
    else:
        sys.__unraisablehook__(unraisable)


def interrupt_again() -> None:
    """Interrupt once more: Python drops what is raised in a callback of its own, like that of an import's end."""
    number = signal.SIGTERM if _signalled.is_set() else signal.SIGINT
    if _signalled.is_set():
        signal.signal(number, _interrupt)
    timer = threading.Timer(REPEAT_AFTER, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def end_with_parent() -> None:
    """Make this spawned process end when its parent does, even if that is killed, and on Ctrl-C without a message."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    import multiprocessing  # imported here: it takes a while, and a signal may come before

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


def end(reason: str) -> NoReturn:
    """End the process, because it waits for something that will not come; any thread may call it."""
    with _ending:
        for say in reversed(_last_words):
            with suppress(Exception):  # for example a full disk: the other callbacks still run
                say(reason)
        with suppress(OSError, ValueError):
            print(f"stopped: {one_line(reason)}", file=sys.stderr, flush=True)
        os._exit(STATUS if _signalled.is_set() else 1)
