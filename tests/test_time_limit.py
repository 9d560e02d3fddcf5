"""No test waits for ever (support/time_limit.py)."""

import signal
import subprocess
import sys
import threading

import pytest
from support.time_limit import time_limit

WAITS = {
    "a lock": lambda: threading.Lock().__enter__() and threading.Event().wait(),
    "a process": lambda: subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(1000)"]),
    "a loop": lambda: [None for _ in iter(int, 1)],
}


@pytest.mark.parametrize("what", WAITS)
def test_what_waits_for_ever_fails(what: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"did not end within 0\.05 seconds"), time_limit(0.05):
        WAITS[what]()


def test_it_fails_again_where_that_was_caught() -> None:
    caught = 0
    with pytest.raises(pytest.fail.Exception), time_limit(0.05):
        while caught < 2:
            try:
                threading.Event().wait()
            except pytest.fail.Exception:
                caught += 1
        signal.pause()
    assert caught == 2


def test_every_test_has_one(pytestconfig: pytest.Config) -> None:
    limit = float(pytestconfig.getini("faulthandler_timeout"))
    assert 600 <= limit <= 1800 and any(thread.name == "time limit" for thread in threading.enumerate())
