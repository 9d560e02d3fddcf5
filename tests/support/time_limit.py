"""A limit for whatever may wait for ever."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SIGNAL = signal.SIGXCPU  # which nothing else handles: tests of Ctrl-C have SIGALRM


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fail what the main thread does here if it takes longer; again and again, should something catch that."""

    def over(*_: object) -> None:
        pytest.fail(f"it did not end within {seconds:g} seconds")

    main, ended = threading.main_thread().ident, threading.Event()
    assert main

    def watch() -> None:
        while not ended.wait(seconds):
            signal.pthread_kill(main, SIGNAL)

    signal.signal(SIGNAL, over)  # and stays: the last one may come late
    watcher = threading.Thread(target=watch, daemon=True, name="time limit")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
