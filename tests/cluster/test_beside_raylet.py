"""Ray's agents end with the node that started them, however that ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedtune.cluster import beside_raylet

SCRIPT = """
import json, sys, time
print(json.dumps([__name__, sys.path[0], sys.argv]), flush=True)
if sys.argv[1] == "hang":
    time.sleep(600)
sys.exit(3)
"""
REAL = {name: value for name, value in os.environ.items() if name != "FEDTUNE_FORKS"}  # forks stand for nothing here


def begin(folder: Path, word: str) -> subprocess.Popen:
    (folder / "agent.py").write_text(SCRIPT)
    command = [sys.executable, "-u", "-P", "-m", beside_raylet.__name__, str(folder / "agent.py"), word, "--x=1 2"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=REAL)


def test_a_script_runs_as_it_would_alone_and_ends_as_it_does(tmp_path: Path) -> None:
    with begin(tmp_path, "end") as process:
        name, path, words = json.loads(process.stdout.readline())
        assert name == "__main__" and path == str(tmp_path) and words == [str(tmp_path / "agent.py"), "end", "--x=1 2"]
        assert process.wait(300) == 3


def test_a_script_that_goes_on_ends_soon_after_who_started_it(tmp_path: Path) -> None:
    with begin(tmp_path, "hang") as process:
        assert process.stdout.readline()
        process.stdin.write("what the node writes does not end it\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        assert process.wait(300) == 1


def test_a_script_without_standard_input_goes_on(tmp_path: Path) -> None:
    """That tells nothing of who started it."""
    (tmp_path / "agent.py").write_text(f"import time\ntime.sleep({beside_raylet.GRACE + 1})\nprint('done')\n")
    words = [sys.executable, "-P", "-m", beside_raylet.__name__, str(tmp_path / "agent.py")]
    closed = subprocess.run(
        ["bash", "-c", 'exec "$@" <&-', "bash", *words], capture_output=True, text=True, env=REAL, timeout=300
    )
    assert (closed.returncode, closed.stdout) == (0, "done\n")


DRIVER = """
import time
from fedtune.cluster import ray_start
with ray_start.connected(None, 1, 0, dashboard=False):
    print("up", flush=True)
    time.sleep(600)
"""
LATE = """
import sys, time
time.sleep(20 if "fedtune.cluster.beside_raylet" in sys.orig_argv else 0)
"""


@pytest.mark.long
def test_a_ray_whose_agents_come_late_comes_up_and_nothing_is_left_of_it_when_its_driver_is_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LATE)
    late = os.pathsep.join([str(tmp_path), *filter(None, [REAL.get("PYTHONPATH")])])
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=REAL | {"PYTHONPATH": late}) as driver:
        assert driver.stdout.readline() == "up\n"
        started = psutil.Process(driver.pid).children(recursive=True)
        agents = [p for p in started if "Agent" in p.name() or beside_raylet.__name__ in p.cmdline()]
        assert len(agents) == 2 and len(started) > 3
        driver.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=60)  # Ray's own take a minute more
    assert not alive
