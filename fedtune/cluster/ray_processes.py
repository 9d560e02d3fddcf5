"""The private names of Ray's processes that fedtune cannot do without, each behind a function, as in ray_internals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fedtune.cluster.ray_internals import environment, replaced
from fedtune.core import interrupting

HANDLER_MARK = "_ZN3ray6RayLog36is_failure_signal_handler_installed_E"  # a bool of C++'s RayLog
SERVICES = ("gcs_server", "raylet")  # the processes without which a driver can do nothing


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

    Batch systems, `timeout` and terminals signal a whole group: a driver whose Ray dies at once would wait for it for a
    minute and be aborted.  On Linux the kernel ends Ray's processes with the driver in any case.
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

    For them SIGTERM is a crash: they write a stack for seconds, and abort the process.  What is not marked as in place
    Ray does not take away when it ends, either, which would leave the process with no handler.
    """
    raylet: Any = resolve_name("ray._raylet")
    try:
        mark = ctypes.c_bool.in_dll(ctypes.CDLL(raylet.__file__), HANDLER_MARK)
    except (OSError, ValueError):  # another Ray has no such name: tests/cluster/test_ray_internals.py would say so
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
def loopback_only() -> Iterator[None]:
    """A Ray started meanwhile listens on loopback only, and does not disturb other Rays of this machine.

    On Linux Ray's ports (but not the dashboard's) are open on every interface, even with a node address of 127.0.0.1,
    which it replaces; on macOS and Windows it keeps to loopback, and this makes it do so everywhere.  It has read the
    variable when it was imported, so the constant is set too; the processes that it starts read the variable.
    """
    from ray._private import ray_constants

    variable = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
    with environment(variable), replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
        yield


def start_dashboard() -> str:
    """Start the dashboard of a Ray that was started here with few services, and give its address once it answers.

    On Linux it ends with the thread that calls this.  With it comes the autoscaler, whose word on the cluster it shows.
    """
    from ray._private import worker

    node: Any = worker._global_node
    with signals_apart():
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
