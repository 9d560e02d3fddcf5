"""Ray's private names: each stands here only, behind a function that says which promise it keeps.

tests/cluster/test_ray_internals.py has a test for each that fails without it, or where Ray has changed.  Ray is
imported where it is used: who only reads a study's folder need not load it.  How a snapshot holds its trials is known
to fedtune/runs/trial_states.py, which stands below.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fedtune.core import interrupting
from fedtune.runs.files import write_whole
from fedtune.runs.trial_states import SNAPSHOTS, trials_in

TUNER_FILE = "tuner.pkl"  # a run's settings
DECISIONS = ("_cached_trial_decisions", "_queued_trial_decisions")  # of the controller, in a snapshot
STACKS = ("ray.tune", "ray.train")  # the loggers that print stacks of trials
STACKS_VARIABLE = "TUNE_PRINT_ALL_TRIAL_ERRORS"  # whether they do
HANDLER_MARK = "_ZN3ray6RayLog36is_failure_signal_handler_installed_E"  # a bool of C++'s RayLog
SERVICES = ("gcs_server", "raylet")  # the processes without which a driver can do nothing
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
RANGE = range(20_000, 32_000)  # of ports: systems give those from 32768 on, or higher ones, to whoever asks for any


@contextmanager
def replaced(where: Any, **by: Any) -> Iterator[None]:
    """A module or class has other values under these names meanwhile."""
    before = {name: getattr(where, name) for name in by}
    for name, value in by.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(where, name, value)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables have these values meanwhile, and their former values afterwards."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.update(before)
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)


# a tuner --------------------------------------------------------------------------------------------------------------


def tune_config(tuner: Any) -> Any:
    """The TuneConfig that a made or restored tuner will use; what is changed in it counts."""
    return tuner._local_tuner._tune_config


def callbacks(tuner: Any) -> list[Any]:
    """The callbacks that a made or restored tuner will call; what is changed in the list counts."""
    return tuner._local_tuner._run_config.callbacks


def limit_trials(tuner: Any, concurrent: int) -> None:
    """Let a restored tuner run so many trials at once, whatever was saved."""
    config = tune_config(tuner)
    config.max_concurrent_trials = config.search_alg.max_concurrent = concurrent


def save_with_next_snapshot(controller: Any, trial: Any) -> None:
    """Have a scheduler's controller write down a trial without a process, which it would leave as it was."""
    controller._tune_controller._mark_trial_to_checkpoint(trial)


@contextmanager
def searching() -> Iterator[None]:
    """Tune leaves SIGUSR1 to us meanwhile, lets trials take the workers that are ready, and imports no tracker.

    Its handler of SIGUSR1 would break off what ours is saving.  A variable that it gives each trial, for PyTorch
    Lightning, makes that wait for a new worker.  To count callbacks it imports MLflow, W&B and Comet: 1.6 CPU seconds.
    """
    from ray.air._internal import usage
    from ray.tune import tune
    from ray.tune.execution import class_cache

    catch = tune._setup_signal_catching

    def catching() -> threading.Event:
        before, interrupted = signal.getsignal(signal.SIGUSR1), catch()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, before)
        return interrupted

    uncounted = replaced(usage, _count_callbacks=lambda callbacks: {})
    with replaced(tune, _setup_signal_catching=catching), replaced(class_cache, DEFAULT_ENV_VARS={}), uncounted:
        yield


def forget_averages(trial: Any, but: Collection[str]) -> None:
    """Drop what Tune keeps of an ended trial's metrics, but some: 100 kB of memory, and 35 kB of every snapshot."""
    kept = trial.run_metadata
    kinds = (kept.metric_analysis, kept.metric_n_steps)
    kept.metric_analysis, kept.metric_n_steps = ({n: v for n, v in of.items() if n in but} for of in kinds)


# a trainable ----------------------------------------------------------------------------------------------------------


def seconds_of(trainable: Any) -> float:
    """The seconds that a trial has trained."""
    return trainable._time_total


def continue_from(trainable: Any, rounds: int, seconds: float) -> None:
    """Count a trial's rounds and seconds on from these."""
    trainable._iteration, trainable._time_total = rounds, seconds


def checkpoint_folder(trainable: Any) -> str | None:
    """The folder that the checkpoint which is being saved goes to; None where Tune keeps none."""
    storage = trainable._storage
    return storage.checkpoint_fs_path if storage else None


def unsaved(trainable: Any) -> Any:
    """What `Trainable.save` returns if a checkpoint could not be written: the one before stays the latest."""
    from ray.train._internal.session import _TrainingResult

    return _TrainingResult(None, trainable._last_result or {})


def known_as_itself(wrapped: Any) -> Any:
    """A class that Tune has wrapped, under its own name: Ray's dashboard and `ps` would show the wrapper's."""
    wrapped.__qualname__ = wrapped.__name__
    return wrapped


def title_with(what: str) -> None:
    """Add words to the title that Ray gives a worker's process while it does a task: `ps` and the dashboard show it."""
    raylet: Any = resolve_name("ray._raylet")
    title = raylet.getproctitle()
    if title.startswith("ray::") and not title.endswith(what):  # in a process of Ray's
        raylet.setproctitle(f"{title} {what}")


# the state of a search on disk ----------------------------------------------------------------------------------------


def snapshots(run: Path) -> list[Path]:
    """The snapshots of a search's trials, the latest last."""
    return sorted(run.glob(SNAPSHOTS))


def snapshot_files(run: Path, snapshot: Path) -> list[Path]:
    """A snapshot and the states of searcher and callbacks that go with it."""
    stamp = snapshot.stem.removeprefix(SNAPSHOTS.partition("*")[0])
    return sorted(run.glob(f"*-{stamp}.json")) + sorted(run.glob(f"*-{stamp}.pkl"))


def is_snapshot(file: Path) -> bool:
    """Whether a file is a snapshot of trials, not another state that goes with one."""
    return file.match(SNAPSHOTS)


def holds_trials(snapshot: Path) -> bool:
    """Whether a snapshot has trials and a controller; an error if it is damaged."""
    content = json.loads(snapshot.read_bytes())
    return bool(content["trial_data"]) and "runner_data" in content


def none_begun(snapshot: Path) -> bool:
    """Whether a snapshot is of a search that was interrupted before its first trial."""
    with suppress(Exception):  # it is damaged
        return bool(json.loads(snapshot.read_bytes())["trial_data"] == [])
    return False


def trial_statuses(snapshot: Path) -> dict[str | None, str]:
    """How each trial stood, in Ray's words; an error if the snapshot is damaged."""
    return {trial.get("trial_id"): trial.get("status", "") for trial in trials_in(snapshot)}


def forget_decisions(snapshot: Path) -> None:
    """Drop what the controller was about to do with trials that were at their checkpoints when the state was saved.

    It would be done after the next checkpoint, to a trial that has begun again by then, and may be in its first round.
    """
    state = json.loads(snapshot.read_bytes())
    made = [name for name in DECISIONS if state["runner_data"].get(name)]
    if made:
        state["runner_data"] |= {name: {} for name in made}
        write_whole(snapshot, json.dumps(state))


@contextmanager
def states_copied_by(copy: Callable[[Path, Path], None]) -> Iterator[None]:
    """The driver's files of a search go to a local folder by this meanwhile, before Tune goes on.

    copy: from which folder to which; what it cannot write is missing there, as what Tune copies is.
    """
    from pyarrow.fs import LocalFileSystem
    from ray.train._internal import storage

    tunes = storage._FilesystemSyncer.sync_up

    def sync_up(syncer: Any, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        if exclude or not isinstance(syncer.storage_filesystem, LocalFileSystem):
            return bool(tunes(syncer, local_dir, remote_dir, exclude))
        try:
            copy(Path(local_dir), Path(remote_dir))
        except OSError:
            return False
        return True

    with replaced(storage._FilesystemSyncer, sync_up=sync_up):
        yield


# Ray's processes ------------------------------------------------------------------------------------------------------


def show_token() -> None:
    """Let this driver present the user's token if there is one, as `ray start` does."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def forget_token() -> None:
    """Have this process look for its token anew: Ray keeps the first that it finds."""
    raylet: Any = resolve_name("ray._raylet")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def signals_apart() -> Iterator[None]:
    """A Ray started meanwhile gets no signals sent to our process group or session, and does not change our handlers.

    Batch systems, `timeout` and terminals signal a whole group: a driver whose Ray dies at once would be aborted.
    """
    from ray._private import services, utils, worker

    join = worker.connect

    def connect(*given: Any, **named: Any) -> Any:
        with interrupting.deferred():  # half a core worker crashes the process as it ends
            return join(*given, **named)

    begin = partial(services.ConsolePopen, start_new_session=True)
    python = replaced(utils, set_sigterm_handler=lambda handler: None)
    with replaced(services, ConsolePopen=begin), python, replaced(worker, connect=connect), _no_handler_of_crashes():
        yield


def shut_down() -> None:
    """End the Ray of this process, or leave the cluster, in one go."""
    import ray

    with interrupting.deferred():
        ray.shutdown()


@contextmanager
def _no_handler_of_crashes() -> Iterator[None]:
    """Ray's C++ leaves this process's handlers: meanwhile it believes that it has put its own in place.

    For those SIGTERM is a crash: they write a stack for seconds, and abort the process.
    """
    raylet: Any = resolve_name("ray._raylet")
    try:
        mark = ctypes.c_bool.in_dll(ctypes.CDLL(raylet.__file__), HANDLER_MARK)
    except (OSError, ValueError):  # Ray for another system hides the name
        yield
        return
    before, mark.value = mark.value, True
    try:
        yield
    finally:
        mark.value = before


def started_here() -> bool:
    """Whether the Ray that this process is connected to was started by it."""
    from ray._private import worker

    node = worker._global_node
    return bool(node and node.all_processes)


def dead_service() -> str | None:
    """The process of our Ray, the control service or the raylet, that has died by itself."""
    from ray._private import worker

    node = worker._global_node
    services: dict[str, list[Any]] = node.all_processes if node else {}  # none of a cluster's
    return next((s for s in SERVICES for p in services.get(s, ()) if p.process.poll() is not None), None)


@contextmanager
def few_services() -> Iterator[None]:
    """A Ray started meanwhile has no processes but those that trials need, and does not end on a busy machine.

    Dashboard, autoscaler and log monitor import Ray for seconds before ray.init is done.  A node that is not told its
    agents' ports waits for them, and ends after 15 s.
    """
    from ray._private import node, parameter, services

    params, start = parameter.RayParams, services.start_raylet
    raylet: Any = resolve_name("ray._raylet")

    def start_raylet(*given: Any, **named: Any) -> Any:
        asked = inspect.signature(start).bind(*given, **named).arguments
        if port := asked["dashboard_agent_listen_port"]:  # the one port that a node reads from a file even then
            name = raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME
            raylet.persist_port(asked["session_dir"], asked["node_id"], name, port)
        return start(*given, **named)

    def chosen(*given: Any, **named: Any) -> Any:
        return params(*given, **(named | {"include_log_monitor": False, "no_monitor": True} | _free_ports()))

    in_node = replaced(node.Node, start_api_server=lambda *_, **__: None)
    with replaced(parameter, RayParams=chosen), in_node, replaced(services, start_raylet=start_raylet):
        yield


def _free_ports() -> dict[str, int]:
    """Ports of loopback that nobody has, from below those that the system gives to whoever asks for any."""
    found: dict[str, int] = {}
    numbers = iter(random.SystemRandom().sample(RANGE, len(RANGE)))  # two Rays that start at once choose others
    while len(found) < len(PORTS):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", number := next(numbers)))
            found[PORTS[len(found)]] = number
    return found


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """A Ray started meanwhile has so many seconds for its node to come up, as a busy machine needs; Ray's own: 30.

    A node that has ended is not waited for: Ray gives up after its own seconds.
    """
    from ray._private import services

    look = services.get_node

    def get_node(gcs_address: str, node_id: str) -> Any:
        until = time.monotonic() + seconds
        while True:
            try:
                return look(gcs_address, node_id)
            except RuntimeError:  # there is none yet
                if time.monotonic() > until or not _raylet_lives():
                    raise
            time.sleep(0.2)

    with replaced(services, get_node=get_node):
        yield


def _raylet_lives() -> bool:
    import psutil

    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "raylet" and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


@contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray started meanwhile listens on loopback only, as it does by itself on macOS and Windows.

    On Linux its ports are open on every interface, whatever the node's address.  Here it has read the variable when it
    was imported; the processes that it starts read it again.
    """
    from ray._private import ray_constants

    variable = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    with environment(variable), replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
        yield


def start_dashboard() -> str:
    """Start the dashboard of a Ray that was started here, and the autoscaler, whose word it shows; its address.

    On Linux it ends with the thread that calls this.
    """
    from ray._private import services, worker

    node: Any = worker._global_node
    with signals_apart(), replaced(services.logger, disabled=True):  # it prints lines of a log, and raises them, too
        node.start_monitor()
        node.start_api_server(include_dashboard=True, raise_on_failure=True)
    return str(node.webui_url)


def end_dashboard() -> None:
    """End it with the processes of its pages: one that waits for an answer of Ray's would outlive both."""
    import psutil
    from ray._private import ray_constants, worker

    node = worker._global_node
    started: Any = node.all_processes.get(ray_constants.PROCESS_TYPE_DASHBOARD, ()) if node else ()
    for dashboard in started:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(dashboard.process.pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def end_those_of(folder: Path) -> None:
    """End what this process has started and has Ray's folder among its words, as after a start that was broken off."""
    import psutil

    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in word for word in each.cmdline()):
                each.kill()
                found.append(each)
    psutil.wait_procs(found, timeout=10)


# what it says ---------------------------------------------------------------------------------------------------------


@contextmanager
def messages_told(tell: Callable[[str], None]) -> Iterator[None]:
    """What Ray would print about nodes, with twenty lines of a raylet's log, goes to this function meanwhile."""
    from ray._private import worker

    prints = worker.print_to_stdstream

    def told(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") == "raylet":
            tell("\n".join(data["lines"]))
        else:
            prints(data, ignore_prefix)

    with replaced(worker, print_to_stdstream=told):
        yield
