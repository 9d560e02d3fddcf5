"""Ray: connect to a cluster, or start one here on loopback."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedtune.cluster import local_ray, ray_internals
from fedtune.core import interrupting, processors
from fedtune.core.errors import UserError
from fedtune.core.terminal import near, one_line, say, several
from fedtune.runs.files import RunFiles

LOOPBACK = "127.0.0.1"
PATIENCE = 180.0  # seconds for a Ray started here to come up
TRIES = 3  # of a Ray whose node ends while it starts
ANSWER = 5.0  # seconds to wait for a cluster's
SECONDS = 60.0  # for nodes to say whether they see a folder
HOST = r"(?:ray://)?([\w-]{1,63}(?:\.[\w-]{1,63})*|\[[\da-fA-F:]+\]):(\d{1,5})"  # of a cluster, and its port

# Ray reads them when it starts, none when it is imported; what a user has set stays
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # by the processes of ray.init: no usage statistics are sent
    "RAY_preload_python_modules": "fedtune.cluster.worker",  # by each worker, which imports what trains beforehand
    "RAY_prestart_worker_first_driver": "0",  # by the node: as many workers as it has CPUs, also for two trials at once
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # by Tuner.fit: TensorBoard's files alone halve the driver's throughput
    "RAY_AIR_NEW_OUTPUT": "0",  # by Tuner.fit: we show a search's progress ourselves
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # by the driver: of several runs that fail one is told, by us
    # by ray.init and the node: a busy machine takes longer to start a service, or a worker
    "RAY_gcs_server_port_wait_time_s": f"{PATIENCE:.0f}",  # Ray's own: 30 s
    "RAY_worker_register_timeout_seconds": f"{PATIENCE:.0f}",  # Ray's own: 60 s
    "RAY_agent_register_timeout_ms": f"{PATIENCE:.0f}000",  # Ray's own: 30 s
    # by the control service: a busy machine's raylet may be slow to say that it lives; that it died, we see ourselves
    "RAY_health_check_timeout_ms": "60000",  # Ray's own: 10 s
    "RAY_health_check_failure_threshold": "10",  # Ray's own: 5
}
AHEAD = {  # where every CPU is to have a trial: its worker loads what trains while the driver still prepares
    "RAY_prestart_worker_first_driver": "1",
    "RAY_num_workers_soft_limit": "{cpus}",  # Ray's own is the CPUs nobody has: it would end them as trials begin
}


@contextmanager
def connected(
    address: str | None,
    cpus: float,
    gpus: float,
    dashboard: bool,
    trials: int = 0,
    log: Path | None = None,
    storage: Path | None = None,
) -> Iterator[int]:
    """Ray for the duration of this context: a cluster's, or started here.  Yields how many trials fit at once.

    cpus, gpus: of a trial.  A Ray that is started here listens on loopback only.
    trials: as many as are to run at once, if Ray has room for them; a Ray started here makes ready for them.
    log: the file for what Ray says of nodes at length.  storage: a folder that every node of a cluster must see.
    A Ray that this process is connected to is used, and left running.  SIGTERM is handled like Ctrl-C meanwhile.
    UserError if it does not answer, or if not even one trial fits.
    """
    ahead = not address and not gpus and trials >= processors.usable()
    with interrupting.terminable(), settings(ahead), ExitStack() as held:
        held.enter_context(ray_internals.messages_told(told(log, address is not None)))
        if not ray.is_initialized():
            require_cpus(cpus, address)
            _note_other_clusters(address)
            folder = None if address else held.enter_context(local_ray.folder())
            held.enter_context(local_ray.watched())
            held.callback(ray_internals.shut_down)
            url = _connect(address, dashboard, folder)
            if url or (dashboard and not address):
                held.enter_context(local_ray.dashboard(url, RunFiles(log.parent).dashboard_file if log else None))
            held.enter_context(interrupting.terminable())  # once more, where another Ray has put in its own
        elif address:
            raise UserError(f"this process has a Ray, but got --address {address}; call ray.shutdown() first")
        elif dead := ray_internals.dead_service():
            raise UserError(f"a search needs a running Ray, but {dead} of this one has died; call ray.shutdown() first")
        fits = _fitting(cpus, gpus)
        if address and storage:
            require_shared(storage)
        yield fits


@contextmanager
def settings(ahead: bool = False) -> Iterator[None]:
    """Settings of this process for a search, restored afterwards: environment, warnings and the loggers' levels.

    ahead: whether a Ray started meanwhile starts workers before they are asked for.
    """
    wanted = SETTINGS | {n: v.format(cpus=processors.usable()) for n, v in AHEAD.items() if ahead}
    with (
        ray_internals.environment(_unless_set(wanted)),
        warnings.catch_warnings(),
        _level(logging.ERROR, "ray"),
        _level(logging.WARNING, optuna.__name__),
    ):
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category)
        yield


@contextmanager
def _level(level: int, *names: str) -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, former in before.items():
            logging.getLogger(name).setLevel(former)


def _unless_set(values: dict[str, str]) -> dict[str, str]:
    return {name: os.environ.get(name, value) for name, value in values.items()}


@contextmanager
def without_stacks() -> Iterator[None]:
    """Leave out Ray's stacks of failed trials meanwhile; each is in its trial's error.txt."""
    unset = _unless_set({ray_internals.STACKS_VARIABLE: "0"})
    with ray_internals.environment(unset), _level(logging.CRITICAL, *ray_internals.STACKS):
        yield


def _note_other_clusters(address: str | None) -> None:
    """Say that the cluster in Ray's environment variable is not joined without --address."""
    there = os.environ.get("RAY_ADDRESS") or "local"
    if not address and there != "local" and "http" not in there:  # a dashboard's is for jobs
        say(f"note: RAY_ADDRESS names {there}, but fedtune starts its own Ray here; --address auto joins the named one")


def _connect(address: str | None, dashboard: bool = False, folder: Path | None = None) -> str:
    """Join a cluster, or start a Ray here, its files in a folder; the address of its dashboard, "" if it has none."""
    how: dict[str, Any] = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        # `ray start` asks for a token wherever the user has one, but a driver shows it only when told to.  A cluster
        # that asks for none cannot call such a driver back: RAY_AUTH_MODE=disabled
        local_ray.keep_token_private()
        ray_internals.show_token()
    else:
        how |= {"dashboard_host": LOOPBACK, "_temp_dir": f"{folder}/{local_ray.INSIDE}"}
        how |= {"num_cpus": processors.usable()} | ({} if dashboard else {"include_dashboard": False})
    try:
        with ExitStack() as meanwhile:
            meanwhile.enter_context(ray_internals.signals_apart())
            if not address:
                meanwhile.enter_context(ray_internals.loopback_only())
                meanwhile.enter_context(ray_internals.few_services())
                meanwhile.enter_context(ray_internals.patient(PATIENCE))
                meanwhile.enter_context(ray_internals.environment(_path_of_workers()))
            context = _started(how)
    except Exception as error:
        said = one_line(error) or type(error).__name__
        first = (str(error).splitlines() or [said])[0].rstrip(".")
        if not address:  # a bare Exception where a busy machine takes too long
            raise UserError(f"Ray could not be started here: {first}; see --debug") from error
        if not isinstance(error, ConnectionError | OSError | RuntimeError | ValueError):
            raise
        if "ersion mismatch" in said:
            rule = f"this machine and the cluster need the same versions of Ray and Python, but {address!r} has others"
            raise UserError(f"{rule} ({said[:300]}); install the cluster's versions here") from error
        raise _no_cluster(f"{address!r} does not answer ({first[:100]})") from error
    url = str(getattr(context, "dashboard_url", None) or "")
    if url:
        say(local_ray.said_of_dashboard(url))
    return url


def _no_cluster(why: str) -> UserError:
    return UserError(f"--address must be that of a running Ray cluster, but {why}; leave it out to start one here")


def _started(how: dict[str, Any]) -> Any:
    """What ray.init returns; a Ray of our own whose node does not come up is started again."""
    for left in reversed(range(TRIES)):
        try:
            return ray.init(**how)
        except Exception as error:
            if how["address"] != "local" or not left or "timed out during startup" not in str(error):
                raise
            say("note: Ray did not come up in time, as on a machine that is very busy; it is started again")
            ray.shutdown()
    raise AssertionError  # the last try returns or raises


def _path_of_workers() -> dict[str, str]:
    """PYTHONPATH by which workers find the package that this process runs: they import it before they know its path."""
    root = Path(__file__).parents[2]
    if root.name in ("site-packages", "dist-packages"):  # it must not come before the standard library
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}


def _fitting(cpus: float, gpus: float) -> int:
    have = ray.cluster_resources()
    for kind, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > have.get(kind, 0):
            raise _too_many(wanted, kind, have.get(kind, 0))
    return max(1, int(min(have["CPU"] / cpus, have["GPU"] / gpus if gpus else math.inf)))


def require_cpus(cpus: float, address: str | None) -> None:
    """UserError if a trial needs more CPUs than a Ray started here would have; Ray is not started."""
    if not address and not ray.is_initialized() and cpus > (have := processors.usable()):
        raise _too_many(cpus, "CPU", have)


def _too_many(wanted: float, kind: str, have: float) -> UserError:
    has = f"a trial needs {wanted:g} {kind}, but the cluster has {have:g}"
    return UserError(f"{has}; lower --{kind.lower()}s-per-trial")


def require_address(address: str | None) -> None:
    """UserError for what is no address of a cluster, and if nothing listens there, without Ray's long wait."""
    if address in (None, "auto", "local"):
        return
    parts = re.fullmatch(HOST, str(address))
    if not parts:
        raise UserError(f"--address must be auto, host:port or ray://host:port, but got {address!r}")
    try:
        socket.create_connection((parts[1].strip("[]"), int(parts[2])), timeout=ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # there is no such port, or name
        raise _no_cluster(f"nobody answers at {parts[1]}:{parts[2]} ({error})") from error


def told(log: Path | None, several: bool) -> Callable[[str], None]:
    """Prints one line for each of Ray's long messages about nodes, and writes the message to a file.

    log: the file, whose folder may be made later.  several: whether there may be more nodes than this one.
    """
    said: set[str] = set()

    def tell(message: str) -> None:
        where = ""
        if log and log.parent.is_dir():
            with suppress(OSError), log.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().isoformat(' ', 'seconds')} {message.rstrip()}\n\n")
                where = f" (more in {near(log)})"
        line = f"note: Ray says: {one_line(message)[:200]}"
        if lost := re.search(r"address: (\S+) .*has been marked dead", message):
            line = f"note: Ray lost the node {lost[1]}; its trials continue on other nodes" if several else ""
        elif "Raylet is terminated" in message:  # what follows, or came before, says which node
            line = ""
        if line and line not in said:
            said.add(line)
            say(line + where)

    return tell


def require_shared(storage: Path) -> None:
    """UserError unless every node of the cluster that trials may run on sees this folder and may write to it.

    The folder need not exist: its nearest existing parent is checked.
    """
    mine = ray.get_runtime_context().get_node_id()
    others = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU") and n["NodeID"] != mine]
    if not others:
        return
    there = storage.absolute()
    while not there.exists():
        there = there.parent
    with tempfile.NamedTemporaryFile(dir=there, prefix=".fedtune-") as file:
        ask: Any = ray.remote(num_cpus=0, max_retries=0)(
            lambda name: os.path.exists(name) and os.access(os.path.dirname(name), os.W_OK)
        )
        at = partial(NodeAffinitySchedulingStrategy, soft=False)
        asked = {ask.options(scheduling_strategy=at(n["NodeID"])).remote(file.name): n for n in others}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SECONDS)
        without = []
        for answer in answered:
            with suppress(ray.exceptions.RayError):  # a node that cannot answer: the search will find out
                if not ray.get(answer):
                    without.append(asked[answer]["NodeManagerAddress"])
    if without:
        who = f"{without[0]} {f'and {len(without) - 1} more do' if without[1:] else 'does'}"
        rule = f"--storage-path must be a folder that every node of the cluster shares, but {who} not see {there}"
        raise UserError(f"{rule}, or cannot write to it; checkpoints of trials would be lost there; give another")
    if silent:
        say(f"note: {several(len(silent), 'node')} did not say within {SECONDS:g} s whether it sees {there}")
