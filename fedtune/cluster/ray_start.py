"""Ray: connect to a cluster, or start one here on loopback."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import optuna
import ray

from fedtune.cluster import addresses, ray_internals
from fedtune.core import interrupting
from fedtune.core.errors import UserError
from fedtune.core.terminal import say

LOOPBACK = "127.0.0.1"
LOOK = 0.5  # seconds between looks at Ray's services
LATER = 10.0  # seconds after Ray's start in which trials load what trains, and the dashboard waits
NICE = 19  # of the dashboard; Ray's workers have 15: it takes little time from those that train first
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # where Ray looks for a token before it looks into the home
PATIENCE = 4.0  # seconds that a driver has, once one has died, to save what it has found and end by itself


# Ray reads them when it starts, none when it is imported; what a user has set stays
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # by the processes of ray.init: nothing calls home
    "RAY_preload_python_modules": "fedtune.cluster.worker",  # by each worker, which imports what trains beforehand
    "RAY_prestart_worker_first_driver": "0",  # by the node: as many workers as it has CPUs, also for two trials at once
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # by Tuner.fit: TensorBoard's files alone halve the driver's throughput
    "RAY_AIR_NEW_OUTPUT": "0",  # by Tuner.fit: we show a search's progress ourselves
}
AHEAD = {  # where every CPU is to have a trial: its worker loads what trains while the driver still prepares
    "RAY_prestart_worker_first_driver": "1",
    "RAY_num_workers_soft_limit": "{cpus}",  # Ray's own is the CPUs nobody has: it would end them as trials begin
}


@contextmanager
def connected(
    address: str | None, cpus: float, gpus: float, dashboard: bool, host: str = LOOPBACK, trials: int = 0
) -> Iterator[int]:
    """Ray for as long as this lasts: a cluster's, or started here.  Gives how many trials fit into it at once.

    cpus, gpus: of a trial.  host: where the dashboard of a Ray started here listens; all else listens on loopback.
    trials: as many as are to run at once, if Ray has room for them; a Ray started here makes ready for them.
    A Ray that this process is connected to already is used, and left as it is.  SIGTERM is Ctrl-C meanwhile.
    UserError if nobody answers, or if not even one trial fits.
    """
    ahead = not address and not gpus and trials >= ray_internals.cpus_here()
    with interrupting.terminable(), settings(ahead), ExitStack() as held:
        own = not ray.is_initialized()
        if own:
            require_cpus(cpus, address)
            _connect(address, host)
            held.enter_context(_watched())
            held.callback(ray.shutdown)
            if dashboard and not address:
                held.enter_context(_dashboard())
            held.enter_context(interrupting.terminable())  # once more, for Ray has a handler of its own
        elif address:
            raise UserError(
                f"a process has one Ray, but this one is connected already and got --address {address}; "
                "call ray.shutdown() first"
            )
        yield _fitting(cpus, gpus)


@contextmanager
def _watched() -> Iterator[None]:
    """End the process, with its last words, where a service of the Ray that it started dies meanwhile.

    Without this a driver waits a minute for it, wherever it speaks to Ray next, and is aborted then.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK):
            dead = ray_internals.dead_service()
            if dead and not over.wait(PATIENCE) and ray_internals.dead_service() == dead:
                interrupting.end(f"Ray's {dead} has died, without which nothing goes on here")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _dashboard() -> Iterator[None]:
    """The dashboard of the Ray that this process started, once trials have begun: it takes seconds of every processor.

    What is over before that has none.
    """
    over = threading.Event()

    def show() -> None:
        if sys.platform == "linux":  # where a thread has a priority, and what it starts has the same
            os.nice(NICE)
        if over.wait(LATER):
            return
        try:
            say(f"dashboard: http://{ray_internals.start_dashboard()}")
        except Exception as error:
            said = (str(error).splitlines() or [type(error).__name__])[-1]
            say(f"note: Ray's dashboard did not start: {said[:200]}")
        over.wait()
        ray_internals.end_dashboard()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        over.set()
        shown.join()


@contextmanager
def settings(ahead: bool = False) -> Iterator[None]:
    """What a search asks of this process, taken back afterwards: environment, warnings and the loggers' levels.

    ahead: whether a Ray started meanwhile starts workers before they are asked for.
    """
    wanted = SETTINGS | {n: v.format(cpus=int(ray_internals.cpus_here())) for n, v in AHEAD.items() if ahead}
    logger, optunas = logging.getLogger("ray"), optuna.logging.get_verbosity()
    level = logger.level
    try:
        with _environment(_unless_set(wanted)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            logger.setLevel(logging.ERROR)
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            yield
    finally:
        logger.setLevel(level)
        optuna.logging.set_verbosity(optunas)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables have these values meanwhile, and afterwards, whoever set them, those of before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _unless_set(values: dict[str, str]) -> dict[str, str]:
    """The same, but of what a user has set the user's."""
    return {name: os.environ.get(name, value) for name, value in values.items()}


@contextmanager
def without_stacks() -> Iterator[None]:
    """Leave out Ray's stacks of failed trials meanwhile; each is in its trial's error.txt."""
    loggers = [logging.getLogger(name) for name in ray_internals.STACKS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with _environment(_unless_set({ray_internals.STACKS_VARIABLE: "0"})):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _connect(address: str | None, host: str) -> None:
    how: dict[str, Any] = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        # `ray start` asks for a token wherever the user has one, but a driver shows it only when told to.  A cluster
        # that asks for none cannot call such a driver back: RAY_AUTH_MODE=disabled
        ray_internals.show_token()
    else:
        _keep_token_private()
        how["dashboard_host"] = host
    try:
        with ExitStack() as meanwhile:
            meanwhile.enter_context(ray_internals.signals_apart())
            if not address:
                meanwhile.enter_context(ray_internals.loopback_only())
                meanwhile.enter_context(ray_internals.few_services())
                meanwhile.enter_context(_environment(_path_of_workers()))
            context = ray.init(**how)
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if not address:  # a bare Exception where a busy machine takes too long
            raise UserError(f"Ray could not be started here: {said}; see --debug") from error
        if not isinstance(error, ConnectionError | OSError | RuntimeError):
            raise
        raise UserError(
            f"--address must be that of a running Ray cluster, but {address!r} does not answer "
            f"({said[:100]}); leave it out to start one here"
        ) from error
    url = getattr(context, "dashboard_url", None)
    if url:
        say(f"dashboard: http://{url}")


def _path_of_workers() -> dict[str, str]:
    """PYTHONPATH by which the processes of a Ray find the package that this one runs, where another is installed, too.

    A worker is told of the driver's path only after it has imported what SETTINGS names.
    """
    root = Path(__file__).parents[2]
    if root.name in ("site-packages", "dist-packages"):  # it must not come before the standard library
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}


def _keep_token_private() -> None:
    """Make the file of the user's token, or take others' rights off it, before Ray writes it as the umask has it.

    Ray takes what is there.  A token that the environment gives, or its file, is the user's own affair.
    """
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or any(map(os.environ.get, TOKENS)):
        return
    file = Path.home() / ".ray" / "auth_token"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with tempfile.NamedTemporaryFile("w", dir=file.parent) as made:  # 0600
                made.write(secrets.token_hex(32))
                made.flush()
                os.link(made.name, file)  # whole or not at all; another process may be as far
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except OSError:
        pass  # a home that cannot be written to: Ray says so itself


def _fitting(cpus: float, gpus: float) -> int:
    """How many trials of so many CPUs and GPUs fit at once; UserError if not even one does."""
    have = ray.cluster_resources()
    for kind, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > have.get(kind, 0):
            raise _too_many(wanted, kind, have.get(kind, 0))
    fits = have["CPU"] / cpus
    if gpus:
        fits = min(fits, have["GPU"] / gpus)
    return max(1, int(fits))


def require_cpus(cpus: float, address: str | None) -> None:
    """UserError for more CPUs a trial than a Ray started here would have, without starting it."""
    if not address and not ray.is_initialized() and cpus > (have := ray_internals.cpus_here()):
        raise _too_many(cpus, "CPU", have)


def _too_many(wanted: float, kind: str, have: float) -> UserError:
    return UserError(
        f"a trial needs {wanted:g} {kind}, but the cluster has {have:g}; lower --{kind.lower()}s-per-trial"
    )


def require_host(host: str) -> None:
    """UserError for a dashboard that others could reach without a token, or that cannot listen there."""
    try:
        address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.bind(address[4])
    except (OSError, UnicodeError) as error:
        raise UserError(f"--dashboard-host must be an address of this machine, but got {host!r} ({error})") from error
    mode = os.environ.get("RAY_AUTH_MODE", "token")  # Ray asks for a token where nothing else is said
    if mode.lower() != "token" and not ipaddress.ip_address(address[4][0]).is_loopback:
        raise UserError(
            f"a dashboard that others can reach must ask for a token, for it runs any code, but got --dashboard-host "
            f"{host} with RAY_AUTH_MODE={mode}; unset that, or leave --dashboard-host out"
        )


def require_address(address: str | None) -> None:
    """UserError where nobody listens, without Ray's long wait."""
    if address in (None, "auto", "local"):
        return
    where = addresses.parsed(address, ("", "ray"), "--address must be auto, host:port or ray://host:port")
    addresses.require_answer(
        where, "--address must be that of a running Ray cluster", "leave it out to start one here"
    )  # fmt: skip
