"""What is changed in Ray to save time: each change fits the Ray that is installed, and a search does without any."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray import _raylet, tune
from ray._private import node, parameter, ray_constants, services, worker
from ray.air._internal import usage
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial

from fedtune.cluster import ray_optional, ray_start
from fedtune.cluster.ray_optional import changed

CHANGES = {
    change.place: change
    for change in (
        *ray_optional.FEW_SERVICES, *ray_optional.SEARCHING, ray_optional.patient(60, print),
        ray_optional.messages_told(print),
    )
}  # fmt: skip
KINDS = {  # of Ray's processes that are made by Python, and their names in Ray
    getattr(ray_constants, name): name for name in vars(ray_constants) if name.startswith("PROCESS_TYPE_")
}
each_change = pytest.mark.parametrize("place", CHANGES)


def there(place: str) -> Any:
    """What Ray has in a place."""
    module, _, path = place.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@each_change
def test_a_change_fits_the_ray_that_is_installed(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """A failure here costs time and nothing else: Ray has changed, see the change in ray_optional.py."""
    before = there(place)
    with caplog.at_level(logging.DEBUG, "fedtune"), changed(CHANGES[place]):
        assert there(place) is not before
    assert there(place) is before and not caplog.records


@each_change
@pytest.mark.parametrize("how", ["moved", "renamed", "of another form"])
def test_where_ray_is_another_a_change_is_left_out(
    place: str, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, (module, _, path) = CHANGES[place], place.partition(":")
    if how == "of another form":
        *parents, name = path.split(".")
        other: Any = {"ANOTHER": "1"} if isinstance(there(place), dict) else lambda other: None
        monkeypatch.setattr(there(":".join([module, *parents])) if parents else sys.modules[module], name, other)
    else:
        change = change._replace(place=f"{module}_of_old:{path}" if how == "moved" else f"{place}_of_old")
    before, others = there(place), [c for c in CHANGES.values() if c.place != place]
    with caplog.at_level(logging.DEBUG, "fedtune"), changed(*others, change):
        assert there(place) is before and all(there(c.place) is not None for c in others)
    (told,) = caplog.records
    assert told.levelno == logging.DEBUG and place.split(":")[1] in told.message and change.without in told.message


def test_an_error_of_what_runs_meanwhile_is_not_taken_for_one_of_a_change() -> None:
    before = class_cache.DEFAULT_ENV_VARS
    with pytest.raises(KeyError, match="mine"), changed(*ray_optional.SEARCHING):
        raise KeyError("mine")
    assert class_cache.DEFAULT_ENV_VARS is before


WITHOUT = """
import json, sys
from ray import tune
from fedtune.cluster import ray_optional
from fedtune.commands import search
made, left = ray_optional.changed, []

def changed(*changes):
    left.extend(change.place for change in changes)
    return made(*(change._replace(place=change.place + "_of_old") for change in changes))

ray_optional.changed = changed
arguments = "--algo fedavg --clients 2 --rounds 1 --trials 2 --final-seeds 0 --no-dashboard --storage-path"
status = search.main([*arguments.split(), sys.argv[1], "--name", "run"])
print(json.dumps([status, left]))
"""


def test_a_search_runs_in_a_ray_that_none_of_the_changes_fits(tmp_path: Path) -> None:
    environment = {n: v for n, v in os.environ.items() if n not in ray_start.SETTINGS} | {"FEDTUNE_FORK": "yes"}
    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    status, left = json.loads(done.stdout.splitlines()[-1])
    assert status == 0 and sorted(left) == sorted(CHANGES), done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == {"finished": 2}


# what each does -------------------------------------------------------------------------------------------------------


class Nothing(tune.Trainable):
    """Trains nothing."""


def test_a_trial_asks_for_no_environment_of_its_own() -> None:
    """Else none of the workers that are started ahead is used."""

    def asked() -> dict:
        return class_cache._ActorClassCache().get(Nothing)._default_options["runtime_env"]

    assert asked() == {"env_vars": {"PL_DISABLE_FORK": "1"}}, "Tune asks for nothing any more: drop this change"
    with changed(*ray_optional.SEARCHING):
        assert not asked().get("env_vars"), "the variables come from elsewhere"
    assert asked()["env_vars"]


def test_tune_leaves_sigusr1_to_whoever_had_it() -> None:
    from ray.tune import tune

    ctrl_c, mine = signal.getsignal(signal.SIGINT), lambda *_: None
    before = signal.signal(signal.SIGUSR1, mine)
    try:
        with changed(*ray_optional.SEARCHING):
            over = tune._setup_signal_catching()
        assert signal.getsignal(signal.SIGUSR1) is mine
        signal.raise_signal(signal.SIGINT)  # which ours stands for
        assert over.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGINT, ctrl_c)


def test_callbacks_are_not_counted() -> None:
    """Else a search imports every tool that Ray knows and that is installed."""
    called = [tune.Callback()]
    with changed(*ray_optional.SEARCHING):
        assert usage.tag_callbacks(called) is None and not usage._count_callbacks(called)
    assert usage._count_callbacks(called), "counted elsewhere"


def test_few_services_are_asked_for_where_ray_init_makes_its_parameters() -> None:
    with changed(*ray_optional.FEW_SERVICES):
        params = parameter.RayParams(metrics_export_port=None)  # as ray.init has it
        assert params.include_log_monitor is False and params.no_monitor
        assert node.Node.start_api_server(None, include_dashboard=True, raise_on_failure=True) is None
    assert parameter.RayParams().include_log_monitor is not False
    assert "ray._private.parameter.RayParams(" in inspect.getsource(worker.init), "it makes them elsewhere"


def test_agents_have_ports_that_nobody_has_and_the_node_knows_them_before_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node ends when its agents need more than 15 s to come, and a busy machine's do."""
    asked: dict[str, Any] = {}

    def start_raylet(gcs_address: str, node_id: str, session_dir: str, dashboard_agent_listen_port: int) -> str:
        asked.update(locals())
        return "started"

    assert "ray._private.services.start_raylet(" in inspect.getsource(node.Node.start_raylet), "started elsewhere"
    monkeypatch.setattr(services, "start_raylet", start_raylet)
    with changed(*ray_optional.FEW_SERVICES):
        params, other = parameter.RayParams(metrics_export_port=None), parameter.RayParams()
        ports = [getattr(params, name) for name in ray_optional.PORTS]
        listens = params.dashboard_agent_listen_port
        assert services.start_raylet("a", "id", str(tmp_path), dashboard_agent_listen_port=listens) == "started"
        assert services.start_raylet("a", "other", str(tmp_path), dashboard_agent_listen_port=0) == "started"
    assert len(set(ports)) == 4 and set(ports) <= set(ray_optional.RANGE)
    assert ports != [getattr(other, name) for name in ray_optional.PORTS]
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    name = _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME
    assert _raylet.wait_for_persisted_port(str(tmp_path), "id", name) == listens
    assert len(list(tmp_path.iterdir())) == 1 and asked["node_id"] == "other"


def test_agents_and_nothing_else_run_beside_the_raylet() -> None:
    """The script that follows is the agent's own."""
    source = inspect.getsource(services.start_raylet)
    with changed(*ray_optional.FEW_SERVICES):
        made = {kind: services._build_python_executable_command_memory_profileable(kind, "session") for kind in KINDS}
    for kind, command in made.items():
        around = ["-P", "-m", "fedtune.cluster.beside_raylet"] if kind in ray_optional.AGENTS else []
        assert command == [sys.executable, "-u", *around], kind
    assert all(f"ray_constants.{KINDS[kind]}, session_dir" in source for kind in ray_optional.AGENTS), "named elsewhere"


@pytest.mark.parametrize(("late", "lives", "told"), [(20, True, 0), (100, True, 1), (999, True, 1), (999, False, 0)])
def test_a_node_that_comes_up_late_is_waited_for(
    late: float, lives: bool, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives it thirty seconds, in which a busy machine's may not be there; none that has died is waited for."""
    assert "ray._private.services.get_node(" in inspect.getsource(node.Node.__init__), "asked elsewhere: see patient"
    now, said = [0.0], list[str]()
    raylet = SimpleNamespace(name=lambda: "raylet", status=lambda: "running" if lives else psutil.STATUS_ZOMBIE)

    def look(gcs_address: str, node_id: str) -> dict:
        if now[0] < late:
            raise RuntimeError("none yet")
        return {"node": node_id}

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda: [raylet]))
    monkeypatch.setattr(ray_optional, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=wait))
    with ray_optional.changed(ray_optional.patient(120, said.append)):
        if late < 120:
            assert services.get_node("address", "id") == {"node": "id"} and now[0] >= late
        else:
            with pytest.raises(
                RuntimeError if lives else TimeoutError, match="none yet" if lives else "the node ended"
            ):
                services.get_node("address", "id")
            assert (now[0] > 120) is lives
    assert services.get_node is look and len(said) == told


def test_averages_of_an_ended_trial_are_forgotten_but_those_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial("counting", stub=True)
    for step in (1, 2):
        trial.run_metadata.update_metric("val_acc", step / 2, step=step)
        trial.run_metadata.update_metric("loss", 1.0, step=step)
    ray_optional.forget_averages(trial, ["val_acc"])
    assert trial.metric_analysis["val_acc"]["max"] == 1.0
    assert set(trial.metric_analysis) == set(trial.metric_n_steps) == {"val_acc"}
    with caplog.at_level(logging.DEBUG, "fedtune"):
        for other in (SimpleNamespace(), SimpleNamespace(run_metadata=SimpleNamespace(metric_analysis=None))):
            ray_optional.forget_averages(other, ["val_acc"])
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2
