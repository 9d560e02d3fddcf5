"""Optional changes to Ray: they save time, wait longer, or shorten a message.

Each change is made only if Ray's code still fits it (written for 2.60).  If Ray has changed, the change is left out and
a debug line says so: a newer Ray then costs speed, but not the search.  The changes that fedtune needs are in
ray_internals.py and ray_processes.py.
"""

from __future__ import annotations

import inspect
import logging
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from pkgutil import resolve_name
from typing import Any, NamedTuple

from fedtune.cluster import beside_raylet
from fedtune.cluster.ray_internals import replaced

RAYS_PATIENCE = 30  # seconds that Ray waits for its node to come up
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
RANGE = range(20_000, 32_000)  # of ports: systems give those from 32768 on, or higher ones, to whoever asks for any
AGENTS = ("dashboard_agent", "runtime_env_agent")  # Ray's names of the two processes beside a node

logger = logging.getLogger(__name__)


class RayPatch(NamedTuple):
    """A part of Ray, and its replacement.

    place     what is replaced: module:name, or module:class.name.
    by        makes the replacement; raises any error if Ray's code is not what it was made for.
    without   the effect of leaving the change out.
    """

    place: str
    by: Callable[[Any], Any]
    without: str


@contextmanager
def changed(*changes: RayPatch) -> Iterator[None]:
    """Apply the changes meanwhile, except those that do not fit the installed Ray."""
    with ExitStack() as held:
        for change in changes:
            with _left_out_unless_fitting(change.place, change.without):
                module, _, path = change.place.partition(":")
                *parents, name = path.split(".")
                where = reduce(getattr, parents, resolve_name(module))
                held.enter_context(replaced(where, **{name: change.by(getattr(where, name))}))
        yield


@contextmanager
def _left_out_unless_fitting(what: str, without: str) -> Iterator[None]:
    """A change ends at its first error, which is logged for debugging."""
    try:
        yield
    except Exception as error:
        logger.debug("Ray has changed in %s (%s: %s): %s", what, type(error).__name__, error, without)


def _require_parameters(function: Callable[..., Any], *names: str) -> None:
    if lacking := [name for name in names if name not in inspect.signature(function).parameters]:
        raise TypeError(f"it does not take {', '.join(lacking)}")


def title_with(what: str) -> None:
    """Add words to the title that Ray gives a worker's process while it does a task: `ps` and the dashboard show it."""
    with _left_out_unless_fitting("ray._raylet.setproctitle", "a worker's title does not name its trial"):
        raylet: Any = resolve_name("ray._raylet")
        title = raylet.getproctitle()
        if title.startswith("ray::") and not title.endswith(what):  # in a process of Ray's
            raylet.setproctitle(f"{title} {what}")


# where Ray is started -------------------------------------------------------------------------------------------------


def _few_processes(params: Any) -> Any:
    asked = {"include_log_monitor": False, "no_monitor": True}
    _require_parameters(params, *asked, *PORTS)
    return lambda *given, **named: params(*given, **(named | asked | _free_ports()))


def _free_ports() -> dict[str, int]:
    """Ports of loopback that nobody has, from below those that the system gives to whoever asks for any."""
    found: dict[str, int] = {}
    for number in random.SystemRandom().sample(RANGE, len(RANGE)):  # two Rays that start at once choose others
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", number))
            found[PORTS[len(found)]] = number
        if len(found) == len(PORTS):
            break
    return found


def _known_ports(start: Callable[..., Any]) -> Callable[..., Any]:
    raylet: Any = resolve_name("ray._raylet")
    name, write = raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, raylet.persist_port
    _require_parameters(start, "node_id", "session_dir", "dashboard_agent_listen_port")

    def start_raylet(*given: Any, **named: Any) -> Any:
        asked = inspect.signature(start).bind(*given, **named).arguments
        if port := asked.get("dashboard_agent_listen_port"):  # the one port that a node reads from a file even then
            write(asked["session_dir"], asked["node_id"], name, port)
        return start(*given, **named)

    return start_raylet


def _ending_with_the_node(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    _require_parameters(command, "component", "session_dir")

    def build(component: str, session_dir: str, *more: Any, **named: Any) -> list[str]:
        around = ["-P", "-m", beside_raylet.__name__] if component in AGENTS else []
        return [*command(component, session_dir, *more, **named), *around]

    return build


def _no_server(start: Any) -> Any:
    _require_parameters(start, "include_dashboard", "raise_on_failure")  # as `ray_processes.start_dashboard` calls it
    return lambda *_, **__: None


# A Ray that is started has no processes but those that trials need: each imports Ray, 0.7 s of a processor and more,
# before ray.init is done with the next one.  The log monitor is for a driver that prints its workers' logs.  A node
# whose agents choose their own ports waits for them, and ends after 15 s, which a busy machine exceeds; here it is told
# the ports and waits for no agent.
FEW_SERVICES = (
    RayPatch("ray._private.parameter:RayParams", _few_processes, "an autoscaler and a log monitor start before trials"),
    RayPatch("ray._private.node:Node.start_api_server", _no_server, "the dashboard starts before trials"),
    RayPatch("ray._private.services:start_raylet", _known_ports, "a node ends if its agents need more than 15 s"),
    RayPatch(
        "ray._private.services:_build_python_executable_command_memory_profileable",
        _ending_with_the_node,
        "two agents live for a minute after a driver was killed",
    ),
)


def patient(seconds: float, tell: Callable[[str], None]) -> RayPatch:
    """Give a starting Ray this many seconds for its node to come up, instead of Ray's own thirty.

    tell: called with a message once the thirty are over.  A node whose process has ended is not waited for.
    """

    def waiting(look: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        _require_parameters(look, "gcs_address", "node_id")

        def get_node(gcs_address: str, node_id: str) -> Any:
            began, told = time.monotonic(), False
            while True:
                try:
                    return look(gcs_address, node_id)
                except RuntimeError:  # there is none yet
                    waited = time.monotonic() - began
                    if waited > seconds:
                        raise
                    if not _raylet_lives():  # Ray would look on for its thirty seconds
                        raise TimeoutError("the node ended: it timed out during startup") from None
                if waited > RAYS_PATIENCE and not told:
                    told = True
                    tell(f"Ray has not come up within {RAYS_PATIENCE} s, as on a busy machine; it gets {seconds:g}")
                time.sleep(0.2)

        return get_node

    return RayPatch("ray._private.services:get_node", waiting, "a Ray that needs more than 30 s to start is given up")


def _raylet_lives() -> bool:
    """Whether the node that this process started is alive."""
    import psutil

    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "raylet" and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


# while a search runs --------------------------------------------------------------------------------------------------


def messages_told(tell: Callable[[str], None]) -> RayPatch:
    """Pass what Ray would print about nodes, with the last twenty lines of a raylet's log, to this function."""

    def telling(prints: Callable[[dict[str, Any], bool], None]) -> Callable[[dict[str, Any], bool], None]:
        _require_parameters(prints, "data", "ignore_prefix")

        def told(data: dict[str, Any], ignore_prefix: bool) -> None:
            if data.get("pid") == "raylet":
                tell("\n".join(data["lines"]))
            else:
                prints(data, ignore_prefix)

        return told

    return RayPatch("ray._private.worker:print_to_stdstream", telling, "Ray tells of lost nodes at length")


def _no_variables(variables: dict[str, str]) -> dict[str, str]:
    if set(variables) != {"PL_DISABLE_FORK"}:
        raise ValueError(f"there are {', '.join(variables) or 'none'}")
    return {}


def _nothing_counted(count: Any) -> Any:
    _require_parameters(count, "callbacks")
    return lambda callbacks: {}


def _usr1_kept(catch: Callable[[], Any]) -> Callable[[], Any]:
    if inspect.signature(catch).parameters:
        raise TypeError("it takes something")

    def catching() -> Any:
        before = signal.getsignal(signal.SIGUSR1)
        found = catch()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, before)
        return found

    return catching


SEARCHING = (
    # Tune takes SIGUSR1 and keeps it.  Our handler, which counts the first signal only, calls Tune's for Ctrl-C.
    RayPatch(
        "ray.tune.tune:_setup_signal_catching", _usr1_kept, "SIGTERM after SIGUSR1 breaks off what is being saved"
    ),
    # Tune gives each trial a variable for PyTorch Lightning, and a worker with another environment than the job's is
    # started again.
    RayPatch("ray.tune.execution.class_cache:DEFAULT_ENV_VARS", _no_variables, "no trial takes a worker that is there"),
    # For its statistics of usage, sent or not, Tune counts the kinds of callbacks, and imports MLflow, Weights & Biases
    # and Comet for that, wherever they are installed: 1.6 s of a processor.
    RayPatch("ray.air._internal.usage:_count_callbacks", _nothing_counted, "Tune imports every tool that it knows"),
)


def forget_averages(trial: Any, but: Collection[str]) -> None:
    """Drop what Tune keeps of an ended trial's metrics besides the last result, except for some of them.

    Extremes and moving averages of forty metrics are 100 kB of a driver's memory a trial; written into every snapshot
    they are 35 kB more, and most of the time that a snapshot takes.
    """
    with _left_out_unless_fitting("Trial.run_metadata", "the driver grows, and snapshots take longer"):
        kept = trial.run_metadata
        kinds = (kept.metric_analysis, kept.metric_n_steps)
        kept.metric_analysis, kept.metric_n_steps = ({n: v for n, v in of.items() if n in but} for of in kinds)
