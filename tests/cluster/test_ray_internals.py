"""Ray's private names: each is there and does what fedtune's comment says, in the Ray that is installed.

A failure here means that Ray has changed: look at the function of ray_internals.py that it names.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray import _raylet, tune
from ray._private import parameter, ray_constants, services, utils, worker
from ray._private.node import Node
from ray.air._internal import usage
from ray.train._internal.storage import StorageContext
from ray.tune import Callback
from ray.tune.execution import class_cache, tune_controller
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from fedtune.cluster import ray_internals, ray_start
from fedtune.core import processors
from tests.support.waiting import wait_for


class Counting(tune.Trainable):
    """Two rounds of nothing."""

    def step(self) -> dict:
        """A round."""
        return {"val_acc": 0.5, "done": self.iteration >= 1}

    def save_checkpoint(self, checkpoint_dir: str) -> dict:
        """Nothing."""
        return {}


def tuner(folder: Path) -> tune.Tuner:
    """One that was never run."""
    return tune.Tuner(
        Counting,
        tune_config=tune.TuneConfig(scheduler=FIFOScheduler(), num_samples=1),
        run_config=tune.RunConfig(name="run", storage_path=str(folder), callbacks=[], verbose=0),
    )


def test_tune_config_and_callbacks_are_those_of_the_tuner(tmp_path: Path) -> None:
    made = tuner(tmp_path)
    assert isinstance(ray_internals.tune_config(made), tune.TuneConfig)
    assert isinstance(ray_internals.tune_config(made).scheduler, FIFOScheduler)
    assert ray_internals.callbacks(made) == [] and isinstance(ray_internals.callbacks(made), list)
    assert (tmp_path / "run" / ray_internals.TUNER_FILE).is_file(), "Tuner no longer writes its settings at once"
    restored = tune.Tuner.restore(str(tmp_path / "run"), trainable=Counting)
    ray_internals.tune_config(restored).search_alg = SimpleNamespace()
    ray_internals.limit_trials(restored, 3)
    config = ray_internals.tune_config(restored)
    assert config.max_concurrent_trials == config.search_alg.max_concurrent == 3


def test_a_trial_can_be_marked_for_the_next_snapshot() -> None:
    assert callable(tune_controller.TuneController._mark_trial_to_checkpoint), "see save_with_next_snapshot"
    marked: list[Any] = []
    inner: Any = SimpleNamespace(_mark_trial_to_checkpoint=marked.append)
    given = tune_controller.TrialRunnerWrapper(inner, None)  # what a scheduler is given
    ray_internals.save_with_next_snapshot(given, "a trial")
    assert marked == ["a trial"], "the controller is wrapped in another way: see save_with_next_snapshot"


def test_a_trainable_counts_on_from_what_it_is_told() -> None:
    trainable = Counting({})
    ray_internals.continue_from(trainable, 7, 3.5)
    assert ray_internals.seconds_of(trainable) == 3.5
    row = trainable.train()
    assert row["training_iteration"] == 8 and row["time_total_s"] >= 3.5, "Trainable counts elsewhere: continue_from"
    assert ray_internals.checkpoint_folder(trainable) is None
    trainable._storage = SimpleNamespace(checkpoint_fs_path="/there")  # type: ignore[assignment]
    assert ray_internals.checkpoint_folder(trainable) == "/there"
    assert isinstance(StorageContext.checkpoint_fs_path, property), "see checkpoint_folder"
    unsaved = ray_internals.unsaved(trainable)
    assert unsaved.checkpoint is None and unsaved.metrics["training_iteration"] == 8


READ = (
    "trial_id status last_result metric_analysis placement_group_factory error_file max_failures num_failures config "
)
READ += "local_path experiment_tag"  # attributes of a trial that fedtune reads


class Look(Callback):
    """Finds them."""

    called = 0

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        """Look at the trial that reported."""
        self.called += 1
        assert not [name for name in READ.split() if not hasattr(trial, name)], "Trial has them no more"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search of one trial."""
    folder = tmp_path_factory.mktemp("canary")
    with ray_start.connected(None, 1, 0, dashboard=False):
        made, look = tuner(folder), Look()
        ray_internals.callbacks(made)[:] = [look]
        grid = made.fit()
    assert not grid.errors and grid[0].metrics["training_iteration"] == 2
    assert look.called == 2, "Tuner calls other callbacks than those that `callbacks` gives"
    return folder / "run"


def test_the_snapshot_of_a_search_is_read_and_decisions_are_dropped_from_it(searched: Path, tmp_path: Path) -> None:
    (snapshot,) = ray_internals.snapshots(searched)
    assert ray_internals.is_snapshot(snapshot) and ray_internals.holds_trials(snapshot)
    state = json.loads(snapshot.read_bytes())
    (trial,) = state["trial_data"]
    assert ray_internals.trial_statuses(snapshot) == {json.loads(trial[0])["trial_id"]: Trial.TERMINATED}
    files = ray_internals.snapshot_files(searched, snapshot)
    assert snapshot in files and len(files) > 1 and not any(map(ray_internals.is_snapshot, set(files) - {snapshot}))
    assert set(ray_internals.DECISIONS) <= set(state["runner_data"]), "the controller keeps no decisions: see DECISIONS"
    state["runner_data"][ray_internals.DECISIONS[0]] = {"a": "STOP"}
    changed = tmp_path / snapshot.name
    changed.write_text(json.dumps(state))
    ray_internals.forget_decisions(changed)
    after = json.loads(changed.read_bytes())
    assert after["runner_data"].pop(ray_internals.DECISIONS[0]) == {} and after["trial_data"] == state["trial_data"]


def test_a_driver_shows_a_token_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    ray_internals.show_token()
    assert os.environ.pop("RAY_AUTH_MODE", None) == "token", "Ray turns tokens on in another way: see show_token"


@pytest.mark.usefixtures("one_ray")
def test_a_ray_started_here_hears_nothing_of_what_our_group_and_session_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signals that this process hears stay as they are, too; and it knows when a service of that Ray is dead."""
    node = worker._global_node
    assert {os.getsid(p.process.pid) for of in node.all_processes.values() for p in of}.isdisjoint({os.getsid(0)})
    before = services.ConsolePopen
    with ray_internals.signals_apart():
        utils.set_sigterm_handler(signal.SIG_IGN)
        assert services.ConsolePopen is not before
    assert services.ConsolePopen is before and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN
    assert set(ray_internals.SERVICES) <= set(node.all_processes) and ray_internals.dead_service() is None
    monkeypatch.setattr(node.all_processes["raylet"][0].process, "poll", lambda: -9)
    assert ray_internals.dead_service() == "raylet"
    monkeypatch.setattr(worker, "_global_node", None)
    assert ray_internals.dead_service() is None


def test_a_ray_is_joined_on_loopback_and_with_its_handler_of_crashes_marked_as_in_place() -> None:
    mark = ctypes.c_bool.in_dll(ctypes.CDLL(ray._raylet.__file__), ray_internals.HANDLER_MARK)
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    with ray_internals.signals_apart(), ray_internals.loopback_only():
        assert mark.value and os.environ[name] == "0" and ray_constants.ENABLE_RAY_CLUSTER is False
    assert not mark.value and ray_constants.ENABLE_RAY_CLUSTER is before and name not in os.environ


@pytest.mark.usefixtures("one_ray")
def test_a_ray_started_here_has_nothing_but_what_runs_trials_and_the_processors_of_this_process() -> None:
    assert set(worker._global_node.all_processes) - {"reaper"} == set(ray_internals.SERVICES)
    assert ray.cluster_resources()["CPU"] == processors.usable() <= (os.cpu_count() or 1)


def test_the_dashboard_ends_with_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Ray leaves one behind that waits for an answer of a Ray that has ended."""
    assert "PROCESS_TYPE_DASHBOARD" in inspect.getsource(Node.start_api_server), "see end_dashboard"
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stdout
        page = psutil.Process(int(dashboard.stdout.readline()))
        started = {ray_constants.PROCESS_TYPE_DASHBOARD: [SimpleNamespace(process=dashboard)]}
        monkeypatch.setattr(worker, "_global_node", SimpleNamespace(all_processes=started))
        ray_internals.end_dashboard()
        assert dashboard.wait(300) == -signal.SIGKILL
    wait_for(lambda: not page.is_running() or page.status() == psutil.STATUS_ZOMBIE)
    ray_internals.end_dashboard()  # it has ended already


def test_lines_of_a_dashboard_that_does_not_start_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[logging.LogRecord] = []

    def start_api_server(**_: Any) -> None:
        services.logger.error("Failed to start the dashboard")
        raise Exception("its log")

    assert "logger.error(" in inspect.getsource(services.start_api_server), "see start_dashboard"
    node = SimpleNamespace(start_monitor=lambda: None, start_api_server=start_api_server)
    monkeypatch.setattr(worker, "_global_node", node)
    monkeypatch.setattr(services.logger, "handle", printed.append)
    with pytest.raises(Exception, match="its log"):
        ray_internals.start_dashboard()
    assert not printed
    services.logger.error("of something else")
    assert len(printed) == 1


def test_stacks_come_from_the_loggers_and_the_variable_that_are_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune_controller.logger.name.startswith(ray_internals.STACKS)
    assert ray_internals.STACKS_VARIABLE in inspect.getsource(tune_controller)
    monkeypatch.delenv(ray_internals.STACKS_VARIABLE, raising=False)
    with ray_start.without_stacks():
        assert os.environ[ray_internals.STACKS_VARIABLE] == "0"
        assert not tune_controller.logger.isEnabledFor(logging.ERROR)
    assert ray_internals.STACKS_VARIABLE not in os.environ and tune_controller.logger.isEnabledFor(logging.ERROR)


def test_a_searchs_files_are_copied_by_us_to_a_local_folder_and_by_tune_elsewhere(tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
    from ray.train._internal.storage import _FilesystemSyncer

    copied: list[tuple[Path, Path]] = []
    source, here, there = tmp_path / "source", tmp_path / "here", tmp_path / "there"
    source.mkdir(), there.mkdir()
    (source / "experiment_state-1.json").write_text("{}")
    before = _FilesystemSyncer.sync_up
    with ray_internals.states_copied_by(lambda a, b: copied.append((a, b))):
        assert _FilesystemSyncer(LocalFileSystem()).sync_up(str(source), str(here))
        assert copied == [(source, here)] and not here.exists()
        elsewhere = _FilesystemSyncer(SubTreeFileSystem(str(there), LocalFileSystem()))
        assert elsewhere.sync_up(str(source), "run")
        elsewhere.wait()
        assert len(copied) == 1 and (there / "run" / "experiment_state-1.json").read_text() == "{}"
    assert _FilesystemSyncer.sync_up is before

    def full(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    with ray_internals.states_copied_by(full):
        assert not _FilesystemSyncer(LocalFileSystem()).sync_up(str(source), str(here))


def test_a_trial_asks_for_no_environment_of_its_own() -> None:
    """Else none of the workers that are started ahead is used."""

    def asked() -> dict:
        return class_cache._ActorClassCache().get(Counting)._default_options["runtime_env"]

    assert asked() == {"env_vars": {"PL_DISABLE_FORK": "1"}}, "Tune asks for something else: see searching"
    with ray_internals.searching():
        assert not asked().get("env_vars"), "the variables come from elsewhere"
    assert asked()["env_vars"]


def test_a_search_imports_no_tracker_to_count_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.air.integrations.mlflow", None)
    with pytest.raises(ImportError):
        usage._count_callbacks([])
    with ray_internals.searching():
        usage._count_callbacks([])


def test_tune_leaves_sigusr1_to_whoever_had_it() -> None:
    from ray.tune import tune as running

    ctrl_c, mine = signal.getsignal(signal.SIGINT), lambda *_: None
    before = signal.signal(signal.SIGUSR1, mine)
    try:
        running._setup_signal_catching()
        assert signal.getsignal(signal.SIGUSR1) is not mine, "Tune leaves it by itself: drop this change"
        signal.signal(signal.SIGUSR1, mine)
        with ray_internals.searching():
            over = running._setup_signal_catching()
        assert signal.getsignal(signal.SIGUSR1) is mine
        signal.raise_signal(signal.SIGINT)  # which ours stands for
        assert over.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGINT, ctrl_c)


def test_agents_have_ports_that_nobody_has_and_the_node_knows_them_before_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node ends when its agents need more than 15 s to come, and a busy machine's do."""
    asked: dict[str, Any] = {}

    def start_raylet(gcs_address: str, node_id: str, session_dir: str, dashboard_agent_listen_port: int) -> str:
        asked.update(locals())
        return "started"

    assert "ray._private.services.start_raylet(" in inspect.getsource(Node.start_raylet), "started elsewhere"
    monkeypatch.setattr(services, "start_raylet", start_raylet)
    with ray_internals.few_services():
        params, other = parameter.RayParams(metrics_export_port=None), parameter.RayParams()
        ports = [getattr(params, name) for name in ray_internals.PORTS]
        listens = params.dashboard_agent_listen_port
        assert services.start_raylet("a", "id", str(tmp_path), dashboard_agent_listen_port=listens) == "started"
        assert services.start_raylet("a", "other", str(tmp_path), dashboard_agent_listen_port=0) == "started"
    assert len(set(ports)) == 4 and set(ports) <= set(ray_internals.RANGE)
    assert ports != [getattr(other, name) for name in ray_internals.PORTS]
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    name = _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME
    assert _raylet.wait_for_persisted_port(str(tmp_path), "id", name) == listens
    assert len(list(tmp_path.iterdir())) == 1 and asked["node_id"] == "other"


@pytest.mark.parametrize(("late", "lives"), [(100, True), (999, True), (20, False)])
def test_a_node_that_comes_up_late_is_waited_for(late: float, lives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray gives it thirty seconds, in which a busy machine's may not be there; none that has died is waited for."""
    assert "ray._private.services.get_node(" in inspect.getsource(Node.__init__), "asked elsewhere: see patient"
    now = [0.0]
    raylet = SimpleNamespace(name=lambda: "raylet", status=lambda: "running" if lives else psutil.STATUS_ZOMBIE)

    def look(gcs_address: str, node_id: str) -> dict:
        if now[0] < late:
            raise RuntimeError("none yet")
        return {"node": node_id}

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(services, "get_node", look)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda: [raylet]))
    monkeypatch.setattr(ray_internals, "time", clock)
    comes = lives and late < 120
    with ray_internals.patient(120), nullcontext() if comes else pytest.raises(RuntimeError, match="none yet"):
        assert services.get_node("address", "id") == {"node": "id"}
    assert (now[0] >= min(late, 120)) is lives and services.get_node is look


def test_averages_of_an_ended_trial_are_forgotten_but_those_asked_for() -> None:
    trial = Trial("counting", stub=True)
    for step in (1, 2):
        trial.run_metadata.update_metric("val_acc", step / 2, step=step)
        trial.run_metadata.update_metric("loss", 1.0, step=step)
    ray_internals.forget_averages(trial, ["val_acc"])
    assert trial.metric_analysis["val_acc"]["max"] == 1.0
    assert set(trial.metric_analysis) == set(trial.metric_n_steps) == {"val_acc"}


def test_a_workers_title_gets_words_once_and_that_of_another_process_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(ray._raylet.getproctitle) and callable(ray._raylet.setproctitle)
    title = ["ray::Trial.train"]
    monkeypatch.setattr(ray._raylet, "getproctitle", lambda: title[-1])
    monkeypatch.setattr(ray._raylet, "setproctitle", title.append)
    for _ in range(2):
        ray_internals.title_with("fedavg in run")
    assert title == ["ray::Trial.train", "ray::Trial.train fedavg in run"]
    title.append("python")
    ray_internals.title_with("fedavg in run")
    assert title[-1] == "python"
