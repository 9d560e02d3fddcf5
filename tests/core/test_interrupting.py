"""SIGTERM is Ctrl-C, once; a process that can only be ended says its last words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fedtune.core import interrupting


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C is Python's own meanwhile: whoever ran Tune in this process has left Tune's.

    A closed terminal ends a process, also if the tests run under nohup.
    """
    meanwhile = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in meanwhile.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", interrupting.NUMBERS)
@pytest.mark.parametrize("heard", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_interrupts_once_and_is_what_it_was_afterwards(heard: signal.Handlers, number: int) -> None:
    """SIGHUP of a closed terminal, too, and SIGUSR1, by which batch systems warn."""
    before, ctrl_c = [signal.getsignal(n) for n in interrupting.NUMBERS], signal.signal(signal.SIGINT, heard)
    try:
        with interrupting.terminable():
            with interrupting.terminable(), pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            for again in interrupting.NUMBERS:  # to its group: a second one would break off what the first asked for
                signal.raise_signal(again)
        assert [signal.getsignal(n) for n in interrupting.NUMBERS] == before
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


def test_what_is_ignored_stays_so() -> None:
    """As by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting.terminable():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_must_be_done_in_one_go_is_interrupted_after_it(number: int) -> None:
    done = []
    with interrupting.terminable(), pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with interrupting.deferred():
            signal.raise_signal(number)
            done.append("whole")
        done.append("more")
    assert done == ["whole"]


ENDING = """
import signal, sys, time
from fedtune import __main__

class Callback:
    def __del__(self):
        signal.raise_signal(signal.{first})

def found(name):
    {body}

__main__.importlib.import_module = found  # as a command is imported
sys.argv = ["fedtune", "list"]
status = __main__.main()
signal.raise_signal(signal.SIGTERM)  # the last lines of the process
sys.exit(status)
"""
# in a callback what is raised cannot be caught, and Python drops it: else a command would go on, deaf
AT_ONCE, DROPPED = "signal.raise_signal(signal.{first})", "Callback(); time.sleep(600)"


@pytest.mark.parametrize(
    ("first", "body"),
    [*((s, AT_ONCE) for s in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT")), ("SIGTERM", DROPPED), ("SIGINT", DROPPED)],
)
def test_a_command_ends_with_130_from_its_first_line_to_its_last(first: str, body: str) -> None:
    code = ENDING.format(first=first, body=body.format(first=first))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


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
