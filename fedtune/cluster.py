"""Ray: connect to a cluster, or start one here on loopback."""

from __future__ import annotations

import logging
import socket
import warnings
from typing import Any

import optuna
import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

from fedtune.cli import say
from fedtune.errors import UserError


def start(address: str | None, cpus: float, gpus: float, dashboard: bool) -> int:
    """Connect to Ray or start it here.  Returns how many trials of so many CPUs and GPUs fit at once.

    UserError if nobody answers, or if not even one trial fits.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    how: dict[str, Any] = {"address": address or "local", "logging_level": logging.ERROR, "log_to_driver": False}
    if address:
        # `ray start` asks for a token wherever the user has one, but a driver shows it only when told to; this is what
        # `ray start` itself calls.  A cluster that asks for none lets us in all the same.
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    else:
        how |= {"include_dashboard": dashboard, "dashboard_host": "127.0.0.1"}
    try:
        context = ray.init(**how)
    except (ConnectionError, OSError, RuntimeError) as error:
        if not address:
            raise UserError(f"Ray could not be started here: {str(error).splitlines()[0]}; see --debug") from error
        raise UserError(
            f"--address must be that of a running Ray cluster, but {address!r} does not answer "
            f"({str(error).splitlines()[0][:100]}); leave it out to start one here"
        ) from error
    have = ray.cluster_resources()
    for kind, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > have.get(kind, 0):
            ray.shutdown()
            raise UserError(
                f"a trial needs {wanted:g} {kind}, but the cluster has {have.get(kind, 0):g}; "
                f"lower --{kind.lower()}s-per-trial"
            )
    url = getattr(context, "dashboard_url", None)
    if url:
        say(f"dashboard: http://{url}")
    fits = have["CPU"] / cpus
    if gpus:
        fits = min(fits, have["GPU"] / gpus)
    return max(1, int(fits))


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


