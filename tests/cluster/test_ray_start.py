"""What a search asks of its process holds while it runs, and no longer; a user's own Tuner beside it is untouched."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import nullcontext
from pathlib import Path

import optuna
import psutil
import pytest
import ray

from fedtune.cluster import local_ray, ray_internals, ray_start
from fedtune.core import interrupting, processors
from fedtune.core.errors import UserError

BOTH = """
import json, os, pathlib, sys
before = dict(os.environ)
import fedtune
from fedtune import search
folder = sys.argv[1]
arguments = "--algo fedavg --clients 2 --rounds 1 --trials 1 --final-seeds 0 --no-dashboard --name ours --storage-path"
status = search.main([*arguments.split(), folder])
left = {name: value for name, value in os.environ.items() if before.get(name) != value}
from ray import tune
trainable, space = fedtune.tunable("fedavg", clients=2, rounds=2)
seen = {}

class Look(tune.Callback):
    def on_trial_result(self, **info):
        import ray
        seen["usage"] = os.environ.get("RAY_USAGE_STATS_ENABLED")

grid = tune.Tuner(
    trainable, param_space=space, tune_config=tune.TuneConfig(metric="val_acc", mode="max", num_samples=1),
    run_config=tune.RunConfig(name="theirs", storage_path=folder, callbacks=[Look()]),
).fit()
print(json.dumps({
    "status": status, "left": left, "rows": len(grid.get_dataframe()),
    "metrics": len(grid[0].metrics_dataframe), "usage": seen["usage"],
    "csv": [len(list(pathlib.Path(folder, name).glob("*/progress.csv"))) for name in ("ours", "theirs")],
}))
"""


@pytest.mark.long
def test_after_our_search_a_users_own_tuner_keeps_its_dataframes(tmp_path: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if n not in ray_start.SETTINGS} | {"FEDTUNE_FORK": "yes"}
    command = [sys.executable, "-c", BOTH, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["status"] == 0, done.stderr
    assert not set(said["left"]) & set(ray_start.SETTINGS), "what a search set must be taken back"
    assert said["rows"] == 1 and said["metrics"] == 2, "Ray's own loggers must be on for a user's Tuner"
    assert said["csv"] == [0, 1], "our search writes one log a trial"
    assert said["usage"] == "0", "a Ray started here reports its use to nobody"


SIGNALLED = """
import os, pkgutil, signal, sys
from fedtune import __main__
import ray._private.worker

place, number = {place!r}, signal.{number}
module, _, name = place.partition(":")
where = pkgutil.resolve_name(module)
real = getattr(where, name)

def signalled(*given, **named):
    found = real(*given, **named)
    os.kill(os.getpid(), number)
    return found

setattr(where, name, signalled)
words = "search --algo fedavg --clients 2 --rounds 1 --trials 1 --final-seeds 0 --no-dashboard --storage-path"
sys.argv = ["fedtune", *words.split(), sys.argv[1]]
sys.exit(__main__.main())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "number"),
    [
        ("ray._private.services:start_gcs_server", "SIGTERM"),  # there is half of a Ray
        ("ray._raylet:CoreWorker", "SIGTERM"),  # Ray's C++ has taken the signals, or would like to
        ("ray._raylet:CoreWorker", "SIGINT"),
        ("ray._private.worker:disconnect", "SIGUSR1"),  # there is half of a Ray again
    ],
)
def test_a_signal_at_any_moment_of_rays_ends_the_command_in_order(place: str, number: str) -> None:
    """It was a crash, a stack of C++, and workers that lived on."""
    folder = Path(tempfile.mkdtemp(prefix="ft", dir="/tmp"))  # short: paths of sockets may not be long
    command = [sys.executable, "-c", SIGNALLED.format(place=place, number=number), str(folder / "runs")]
    try:
        environment = os.environ | {"RAY_TMPDIR": str(folder), "FEDTUNE_FORK": "yes"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr.splitlines()[-1:]) == (130, ["interrupted"]), done.stderr
        assert "***" not in done.stderr and "Traceback" not in done.stderr
        assert not [*folder.glob(f"{local_ray.PREFIX}*")]
        named = [p for p in psutil.process_iter(["cmdline"]) if any(str(folder) in w for w in p.info["cmdline"] or ())]
        psutil.wait_procs(named, timeout=120)
        assert not [p for p in named if p.is_running()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_settings_hold_meanwhile_and_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AIR_NEW_OUTPUT", raising=False)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "0")  # a user's choice
    level, filters, optunas = logging.getLogger("ray").level, list(warnings.filters), optuna.logging.get_verbosity()
    with pytest.raises(KeyError), ray_start.settings():
        assert os.environ["RAY_AIR_NEW_OUTPUT"] == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "0"
        assert logging.getLogger("ray").level == logging.ERROR
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # as ray.init does
        raise KeyError
    assert "RAY_AIR_NEW_OUTPUT" not in os.environ and "RAY_USAGE_STATS_ENABLED" not in os.environ
    assert os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] == "0"
    assert (logging.getLogger("ray").level, warnings.filters) == (level, filters)
    assert optuna.logging.get_verbosity() == optunas


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ray of four processors and a GPU is not there yet; what is done to it."""
    order: list[str] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: order.append("init"))
    monkeypatch.setattr(ray, "shutdown", lambda: order.append("shut down"))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 1.0})
    monkeypatch.setattr(processors, "usable", lambda: 4)
    return order


def test_more_cpus_than_there_are_are_refused_before_ray_starts(started: list[str]) -> None:
    with pytest.raises(UserError, match="a trial needs 8 CPU, but the cluster has 4; lower --cpus-per-trial"):
        ray_start.connected(None, 8, 0, dashboard=True).__enter__()
    ray_start.require_cpus(4, None)
    ray_start.require_cpus(8, "head:6379")  # a cluster's are known when it has answered
    assert not started


def test_workers_are_told_to_load_a_module_that_there_is() -> None:
    assert importlib.util.find_spec(ray_start.SETTINGS["RAY_preload_python_modules"])


@pytest.mark.parametrize("before", [None, "mine"])
def test_rays_processes_import_the_package_that_the_driver_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    """A worker imports what SETTINGS names before it knows of the driver's path: another fedtune may be installed."""
    seen = []

    def init(**_: object) -> None:
        code = "import fedtune; print(fedtune.__file__)"
        found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        seen.extend([found.stdout.strip(), os.environ["PYTHONPATH"]])

    root = tmp_path / "clone"
    (root / "fedtune").mkdir(parents=True)
    (root / "fedtune" / "__init__.py").touch()
    monkeypatch.setattr(ray_start, "__file__", str(root / "fedtune" / "cluster" / "ray_start.py"))
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before:
        monkeypatch.setenv("PYTHONPATH", before)
    ray_start._connect(None)
    assert seen == [str(root / "fedtune" / "__init__.py"), os.pathsep.join([str(root), *([before] if before else [])])]
    assert os.environ.get("PYTHONPATH") == before
    monkeypatch.setattr(ray_start, "__file__", str(tmp_path / "site-packages" / "fedtune" / "cluster" / "ray_start.py"))
    assert ray_start._path_of_workers() == {}, "packages must not come before the standard library"


@pytest.mark.parametrize(
    ("address", "gpus", "trials", "ahead"),
    [(None, 0, 4, True), (None, 0, 9, True), (None, 0, 3, False), (None, 0.5, 4, False), ("head:1", 0, 4, False)],
)
def test_workers_start_ahead_where_trials_take_every_cpu(
    started: list, monkeypatch: pytest.MonkeyPatch, address: str | None, gpus: float, trials: int, ahead: bool
) -> None:
    seen = {}
    for name in ray_start.AHEAD:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_start, "_connect", lambda *_: seen.update({n: os.environ.get(n) for n in ray_start.AHEAD}))
    with ray_start.connected(address, 1, gpus, dashboard=False, trials=trials):
        pass
    assert (seen["RAY_prestart_worker_first_driver"] == "1") is ahead
    assert seen["RAY_num_workers_soft_limit"] == ("4" if ahead else None)
    assert not set(ray_start.AHEAD) & set(os.environ)


def test_a_ray_that_is_there_is_used_and_left(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with ray_start.connected(None, 1, 0.5, dashboard=True) as fits:
        assert fits == 2
    for address, cpus, dead, says in (
        ("head:6379", 1, None, "this process has a Ray, but got --address head:6379"),
        (None, 8, None, "a trial needs 8 CPU, but the cluster has 4; lower --cpus-per-trial"),
        (None, 1, "raylet", r"but raylet of this one has died; call ray.shutdown\(\) first"),
    ):
        monkeypatch.setattr(ray_internals, "dead_service", lambda dead=dead: dead)
        with pytest.raises(UserError, match=says):
            ray_start.connected(address, cpus, 0, dashboard=True).__enter__()
    assert not started


LATE = "The current node timed out during startup. Perhaps the raylet failed.\nmore"
OTHER = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\nThis …"


@pytest.mark.parametrize(
    ("address", "error", "told"),
    [
        (None, Exception(LATE), "started here: The current node timed out .* failed; see --debug$"),
        ("head:1", RuntimeError(OTHER), r"'head:1' has others \(.* Ray: 2.9.0 Python: 3.10.1 This …\); install"),
        ("head:1", ValueError("Module: no\nmore"), r"does not answer \(Module: no\); leave it out"),
        ("head:1", ConnectionError("Ray is not there.\nmore"), r"does not answer \(Ray is not there\); leave it out"),
    ],
)
def test_a_ray_that_does_not_come_is_told_in_one_line(
    address: str | None, error: Exception, told: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray_internals, "show_token", lambda: None)
    with pytest.raises(UserError, match=told):
        ray_start._connect(address)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([None, "raylet", "raylet"], ["Ray's raylet has died, and nothing can continue without it"]),
        ([None, "raylet", None], []),  # it was ended on purpose
    ],
)
def test_a_driver_whose_ray_has_died_is_ended(
    found: list[str | None], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, ended, over = iter(found), list[str](), threading.Event()

    def look() -> str | None:
        one = next(looked, "")
        if one == "":
            over.set()
        return one or None

    monkeypatch.setattr(local_ray, "LOOK", 0.001)
    monkeypatch.setattr(local_ray, "PATIENCE", 0.001)
    monkeypatch.setattr(ray_internals, "dead_service", look)
    monkeypatch.setattr(interrupting, "end", lambda why: (ended.append(why), over.set()))
    with local_ray.watched():
        assert over.wait(300)
    assert ended == told


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("", ""),
        ("no port is free", "no port is free"),
        ("a log's last lines:\n{'request': {", "it ended, or the machine is too busy"),
    ],
)
def test_the_dashboard_comes_while_trials_run_and_no_search_fails_without_it(
    error: str, why: str, started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials_run, begun = threading.Event(), threading.Event()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")

    def start() -> str:
        begun.set()
        assert trials_run.wait(300)
        started.append("dashboard")
        if error:
            raise Exception(error)
        return "127.0.0.1:8265"

    monkeypatch.setattr(ray_internals, "start_dashboard", start)
    with ray_start.connected(None, 1, 0, dashboard=True):
        pass
    assert started == ["init", "shut down"]  # nobody waits for it
    monkeypatch.setattr(local_ray, "LATER", 0)
    with ray_start.connected(None, 1, 0, dashboard=True) as fits:
        assert fits == 4 and begun.wait(300) and started[2:] == ["init"]
        trials_run.set()
    assert started[3:] == ["dashboard", "shut down"]
    said = local_ray.said_of_dashboard("127.0.0.1:8265") + "\n"
    failed = f"note: Ray's dashboard did not start: {why}; the search goes on without it\n"
    assert capsys.readouterr() == (("", failed) if error else (said, ""))


@pytest.mark.parametrize(("address", "ends", "tries"), [("local", 2, 3), ("local", 3, 3), ("head:6379", 1, 1)])
def test_a_ray_that_ends_while_it_starts_is_started_again(
    address: str, ends: int, tries: int, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a cluster's, which others start."""
    tried: list[str] = []

    def init(address: str) -> str:
        tried.append(address)
        if len(tried) <= ends:
            raise Exception("The current node timed out during startup. This could happen because …")
        return "context"

    monkeypatch.setattr(ray, "init", init)
    with nullcontext() if ends < tries else pytest.raises(Exception, match="timed out"):
        assert ray_start._started({"address": address}) == "context"
    assert len(tried) == tries
