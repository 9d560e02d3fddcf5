"""The private names of Ray's processes that fedtune uses, each behind a function, as in ray_internals.py.

Ray 2.60; tests/cluster/test_ray_internals.py tries each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from fedtune.cluster.ray_internals import replaced

RAYS_PATIENCE = 30  # seconds that Ray waits for its node to come up
SERVICES = ("gcs_server", "raylet")  # the processes without which a driver can do nothing


def cpus_here() -> float:
    """The CPUs that a Ray started here would count."""
    from ray._private.utils import get_num_cpus

    return get_num_cpus(override_docker_cpu_warning=True)


def show_token() -> None:
    """Have this driver show the user's token where there is one, as `ray start` does."""
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


@contextmanager
def signals_apart() -> Iterator[None]:
    """A Ray started meanwhile hears no signal that goes to our group or session, and leaves it to us what we hear.

    Batch systems, `timeout` and terminals send theirs to all of a group: a driver whose Ray dies with it waits for that
    for a minute and is aborted.  On Linux the kernel ends Ray's processes with the driver in any case.
    """
    from ray._private import services, utils

    begin = partial(services.ConsolePopen, start_new_session=True)
    with replaced(services, ConsolePopen=begin), replaced(utils, set_sigterm_handler=lambda handler: None):
        yield


@contextmanager
def patient(seconds: float, tell: Callable[[str], None]) -> Iterator[None]:
    """A Ray started meanwhile has so many seconds for its node to come up, of which Ray itself gives it thirty.

    tell: hears, once those are over, that there are more.  A node whose process has ended is not waited for.
    """
    import psutil
    from ray._private import services

    look = services.get_node  # raises RuntimeError where there is none yet

    def get_node(gcs_address: str, node_id: str) -> Any:
        began, told = time.monotonic(), False
        while True:
            try:
                return look(gcs_address, node_id)
            except RuntimeError:
                waited = time.monotonic() - began
                if waited > seconds or not any(_lives(p, "raylet") for p in psutil.Process().children()):
                    raise
            if waited > RAYS_PATIENCE and not told:
                told = True
                tell(f"Ray has not come up within {RAYS_PATIENCE} s, as on a busy machine; it gets {seconds:g}")
            time.sleep(0.2)

    with replaced(services, get_node=get_node):
        yield


def _lives(process: Any, name: str) -> bool:
    import psutil

    with suppress(psutil.NoSuchProcess):
        return bool(process.name() == name and process.status() != psutil.STATUS_ZOMBIE)
    return False


def started_here() -> bool:
    """Whether the Ray that this process is connected to was started by it."""
    from ray._private import worker

    node = worker._global_node
    return bool(node and node.all_processes)


def dead_service() -> str | None:
    """The process of a Ray that this one started, its control service or its raylet, that has died by itself."""
    from ray._private import worker

    node = worker._global_node
    services: dict[str, list[Any]] = node.all_processes if node else {}  # none of a cluster's
    return next((s for s in SERVICES for p in services.get(s, ()) if p.process.poll() is not None), None)


@contextmanager
def messages_told(tell: Callable[[str], None]) -> Iterator[None]:
    """What Ray would print of nodes meanwhile, with the last twenty lines of a raylet's log, is told to this."""
    from ray._private import worker

    prints = worker.print_to_stdstream

    def told(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") == "raylet":
            tell("\n".join(data["lines"]))
        else:
            prints(data, ignore_prefix)

    with replaced(worker, print_to_stdstream=told):
        yield


@contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray started meanwhile talks on loopback only, and goes beside other Rays of this machine.

    On Linux Ray's ports (but not the dashboard's) are open on every interface, even with a node address of 127.0.0.1,
    which it replaces; on macOS and Windows it keeps to loopback, and this makes it do so everywhere.  It has read the
    variable when it was imported, so the constant is set too; the processes that it starts read the variable.
    """
    from ray._private import ray_constants

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        with replaced(ray_constants, ENABLE_RAY_CLUSTER=False):
            yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def few_services() -> Iterator[None]:
    """A Ray started meanwhile has no processes but those that trials need: no dashboard, autoscaler and log monitor.

    `start_dashboard` starts the dashboard later.  The log monitor is for a driver that prints its workers' logs, and
    each of these processes imports Ray, 0.7 s of a processor and more, before ray.init is done with the next one.
    The agent wants one fixed port, and without it the dashboard has no logs; here it takes a free one.
    """
    from ray._private import node, parameter

    made: Any = parameter.RayParams
    params = partial(made, dashboard_agent_listen_port=0, include_log_monitor=False, no_monitor=True)
    with replaced(parameter, RayParams=params), replaced(node.Node, start_api_server=lambda *_, **__: None):
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
