"""SIGTERM is Ctrl-C, once; a process that can only be ended says its last words."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from fedtune.core import interrupting


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is Python's own meanwhile: whoever ran Tune in this process has left Tune's."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("heard", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_interrupts_once_and_is_what_it_was_afterwards(heard: signal.Handlers) -> None:
    before, ctrl_c = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, heard)
    try:
        with interrupting.terminable():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # to its group: a second one would break off what the first asked for
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


def test_another_thread_leaves_signals_alone() -> None:
    before, meanwhile = signal.getsignal(signal.SIGTERM), []

    def at_work() -> None:
        with interrupting.terminable():
            meanwhile.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=at_work)
    thread.start()
    thread.join()
    assert meanwhile == [before]


@pytest.mark.parametrize(("signalled", "status"), [(True, 130), (False, 1)])
def test_the_last_words_are_said_by_all_the_innermost_first(
    signalled: bool, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    said = []

    def ended(status: int) -> None:
        raise SystemExit(status)

    def full(why: str) -> None:
        raise OSError(why)

    monkeypatch.setattr(os, "_exit", ended)
    with interrupting.terminable():
        if signalled:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        with interrupting.last_words(lambda why: said.append(f"outer {why}")), interrupting.last_words(full):
            with interrupting.last_words(lambda why: said.append("over")):
                pass
            with interrupting.last_words(lambda why: said.append(f"inner {why}")), pytest.raises(SystemExit) as end:
                interrupting.end("why")
    assert said == ["inner why", "outer why"] and end.value.code == status
    assert capsys.readouterr().err == "stopped: why\n"
