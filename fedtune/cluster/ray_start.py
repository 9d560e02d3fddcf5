"""Ray: connect to a cluster, or start one here on loopback."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import optuna
import ray
from ray._private import parameter, ray_constants
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

from fedtune.core.errors import UserError
from fedtune.core.terminal import say

LOOPBACK = "127.0.0.1"


# Ray reads all three when it starts, none when it is imported; what a user has set stays
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # by the processes of ray.init: nothing calls home
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # by Tuner.fit: TensorBoard's files alone halve the driver's throughput
    "RAY_AIR_NEW_OUTPUT": "0",  # by Tuner.fit: we show a search's progress ourselves
}


@contextmanager
def connected(address: str | None, cpus: float, gpus: float, dashboard: bool, host: str = LOOPBACK) -> Iterator[int]:
    """Ray for as long as this lasts: a cluster's, or started here.  Gives how many trials fit into it at once.

    cpus, gpus: of a trial.  host: where the dashboard of a Ray started here listens; all else listens on loopback.
    A Ray that this process is connected to already is used, and left as it is.
    UserError if nobody answers, or if not even one trial fits.
    """
    with settings():
        own = not ray.is_initialized()
        if own:
            _connect(address, dashboard, host)
        elif address:
            raise UserError(
                f"a process has one Ray, but this one is connected already and got --address {address}; "
                "call ray.shutdown() first"
            )
        try:
            yield _fitting(cpus, gpus)
        finally:
            if own:
                ray.shutdown()


@contextmanager
def settings() -> Iterator[None]:
    """What a search asks of this process, taken back afterwards: environment, warnings and the loggers' levels."""
    before = {name: os.environ.get(name) for name in SETTINGS}
    logger, optunas = logging.getLogger("ray"), optuna.logging.get_verbosity()
    level = logger.level
    os.environ.update({name: SETTINGS[name] for name, value in before.items() if value is None})
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            warnings.filterwarnings("ignore", category=FutureWarning)
            logger.setLevel(logging.ERROR)
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            yield
    finally:
        logger.setLevel(level)
        optuna.logging.set_verbosity(optunas)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value  # ray.init sets one itself


def _connect(address: str | None, dashboard: bool, host: str) -> None:
    how: dict[str, Any] = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        # `ray start` asks for a token wherever the user has one, but a driver shows it only when told to; this is what
        # `ray start` itself calls.  A cluster that asks for none cannot call such a driver back: RAY_AUTH_MODE=disabled
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    else:
        how |= {"include_dashboard": dashboard, "dashboard_host": host}
    try:
        with nullcontext() if address else _private():
            context = ray.init(**how)
    except (ConnectionError, OSError, RuntimeError) as error:
        if not address:
            raise UserError(f"Ray could not be started here: {str(error).splitlines()[0]}; see --debug") from error
        raise UserError(
            f"--address must be that of a running Ray cluster, but {address!r} does not answer "
            f"({str(error).splitlines()[0][:100]}); leave it out to start one here"
        ) from error
    url = getattr(context, "dashboard_url", None)
    if url:
        say(f"dashboard: http://{url}")


def _fitting(cpus: float, gpus: float) -> int:
    """How many trials of so many CPUs and GPUs fit at once; UserError if not even one does."""
    have = ray.cluster_resources()
    for kind, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > have.get(kind, 0):
            raise UserError(
                f"a trial needs {wanted:g} {kind}, but the cluster has {have.get(kind, 0):g}; "
                f"lower --{kind.lower()}s-per-trial"
            )
    fits = have["CPU"] / cpus
    if gpus:
        fits = min(fits, have["GPU"] / gpus)
    return max(1, int(fits))


@contextmanager
def _private() -> Iterator[None]:
    """What Ray starts meanwhile talks on loopback only, and goes beside other Rays of this machine.

    On Linux Ray's ports (but not the dashboard's) are open on every interface, even with a node address of 127.0.0.1,
    which it replaces; on macOS and Windows it keeps to loopback, and this makes it do so everywhere.  It has read the
    variable by now, so the constant is set too; the processes that it starts read the variable.
    Its agent wants one fixed port, and without it the dashboard has no logs; here it takes a free one.
    """
    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before, clusters, params = os.environ.get(name), ray_constants.ENABLE_RAY_CLUSTER, vars(parameter)["RayParams"]
    os.environ[name] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    vars(parameter)["RayParams"] = partial(params, dashboard_agent_listen_port=0)
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        vars(parameter)["RayParams"] = params
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def require_host(host: str) -> None:
    """UserError for a dashboard that others could reach without a token, or that cannot listen there."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.bind(found[4])
    except (OSError, UnicodeError) as error:
        raise UserError(f"--dashboard-host must be an address of this machine, but got {host!r} ({error})") from error
    mode = os.environ.get("RAY_AUTH_MODE", "token")  # Ray asks for a token where nothing else is said
    if mode.lower() != "token" and not ipaddress.ip_address(found[4][0]).is_loopback:
        raise UserError(
            f"a dashboard that others can reach must ask for a token, for it runs any code, but got --dashboard-host "
            f"{host} with RAY_AUTH_MODE={mode}; unset that, or leave --dashboard-host out"
        )


def require_address(address: str | None) -> None:
    """UserError where nobody listens, without Ray's long wait."""
    if address in (None, "auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--address must be auto, host:port or ray://host:port, but got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--address must be that of a running Ray cluster, but nobody answers at {host}:{port} ({error}); "
            "leave it out to start one here"
        ) from error


