"""The jobs of a Ray cluster that `fedtune submit` sent: reach the cluster, list, follow and stop them.

Ray and aiohttp are imported where a cluster is reached, for `fedtune jobs --help` needs neither.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedtune.cluster import addresses, ray_processes
from fedtune.core.about import VERSION
from fedtune.core.errors import UserError, unknown
from fedtune.core.terminal import command_line, say

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails
    from ray.job_submission import JobSubmissionClient

MARK = "fedtune"  # the entry of a job's metadata that marks it as fedtune's
ENVIRONMENT = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray's own names for where a cluster is
HERE = "http://127.0.0.1:8265"
JOB_ENVIRONMENT = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}  # for a stopped search to write down what it found; Ray's own: 3


def given_address() -> str | None:
    """The cluster that Ray's environment variables name by its dashboard."""
    return next((v for n in ENVIRONMENT if re.match("https?://", v := os.environ.get(n, ""))), None)


@contextmanager
def reached(address: str) -> Iterator[JobSubmissionClient]:
    """A client of the cluster whose dashboard is at the address, with the user's token if there is one.

    UserError for an address of another form, if nobody answers (at once or later), and if the token is refused.
    """
    _require_answer(address)
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("ray", "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        ray_processes.show_token()
        os.environ[ENVIRONMENT[0]] = address  # Ray lets it win over what it is given
        yield JobSubmissionClient(address)
    except AuthenticationError as error:
        came = (
            "the given token is not valid there" if str(error).startswith("Authentication failed") else "none was found"
        )
        raise UserError(
            f"the cluster at {address} requires its token, but {came}; run `ray get-auth-token` on its head "
            "node and put "
            "what it prints into RAY_AUTH_TOKEN, or into a file named by RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token"
        ) from error
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"a job needs a cluster that answers, but {address} does not ({reason[-200:]}); "
            "jobs that run there continue; look at it with fedtune jobs list"
        ) from error


def _require_answer(address: str) -> None:
    """UserError if it is not a web address, or if nothing listens there, without a long wait."""
    where = addresses.parsed(address, ("http", "https"), "--address must be the dashboard's, like http://head:8265")
    addresses.require_answer(
        where,
        "--address must be the dashboard's of a running Ray cluster",
        "on the head, `ray status` says whether it runs; from elsewhere, forward its port with ssh -L",
    )


def ours(client: JobSubmissionClient) -> dict[str, JobDetails]:
    """The jobs that fedtune submitted, by name, the oldest first."""
    submitted = [j for j in client.list_jobs() if j.submission_id and MARK in (j.metadata or {})]
    return {str(j.submission_id): j for j in sorted(submitted, key=lambda j: j.start_time or 0)}


def submit(client: JobSubmissionClient, name: str, entrypoint: str, package: Path) -> None:
    """Send a job: its shell line, and its working folder as a .zip; UserError for a name that was used before."""
    if name in {j.submission_id for j in client.list_jobs()}:
        raise UserError(f"a job needs a new name, but the cluster already had a job {name}; give another --name")
    client.submit_job(
        entrypoint=entrypoint,
        submission_id=name,
        metadata={MARK: VERSION},
        runtime_env={"working_dir": str(package), "env_vars": JOB_ENVIRONMENT},
    )


def follow(client: JobSubmissionClient, job: str, address: str) -> int:
    """Print a job's log as it grows, and how it ended; 0 if it succeeded, 1 if not.

    130 on Ctrl-C, after which the job continues to run.
    """
    try:
        ended = asyncio.run(_follow(client, job))
    except KeyboardInterrupt:
        say(f"\n{job} continues to run.  {next_commands(job, address)}")
        return 130
    say(f"{job}: {str(ended.status).lower()}" + (f", exit status {c}" if (c := ended.driver_exit_code) else ""))
    if ended.status == "FAILED" and ended.driver_exit_code is None:
        say(ended.message or "")  # it never began, so its log does not say why
    return 0 if ended.status == "SUCCEEDED" else 1


def next_commands(job: str, address: str) -> str:
    """What to type for the rest of the log, and to end the job."""
    return (
        f"Follow it: {command_line('jobs', 'logs', job, '--follow', '--address', address)}   "
        f"Stop it: {command_line('jobs', 'stop', job, '--address', address)}"
    )


async def _follow(client: JobSubmissionClient, job: str) -> JobDetails:
    import aiohttp

    shown = 0  # characters; a new connection sends the log from its start
    while True:
        sent = 0
        try:
            async for text in client.tail_job_logs(job):
                sent += len(text)
                print(text[max(0, len(text) - max(0, sent - shown)) :], end="", flush=True)
                shown = max(shown, sent)
        except (RuntimeError, aiohttp.ClientError):
            pass  # the connection broke; the next request shows whether the cluster is still there
        details = client.get_job_info(job)
        if details.status.is_terminal():
            return details
        await asyncio.sleep(1)


def stop(client: JobSubmissionClient, job: JobDetails) -> int:
    """Stop a job, and wait until it has ended; UserError if it had ended before."""
    name, asked = str(job.submission_id), False
    if job.status.is_terminal():
        raise UserError(f"only a running job can be stopped, but {name} is {job.status.lower()}; see fedtune jobs list")
    while not (status := client.get_job_status(name)).is_terminal():
        asked = asked or client.stop_job(name)  # not before its supervisor is up
        time.sleep(0.2)
    say(f"{name}: {status.lower()}; its results are in its folder, and fedtune resume continues from there")
    return 0


def unknown_job(name: str, known: list[str]) -> UserError:
    """The error for an unknown job, with the nearest name among fedtune's jobs, and the latest."""
    if not known:
        return UserError(f"a job must be one that fedtune submitted, but this cluster has none, so not {name!r} either")
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
    return unknown("job", name, dict.fromkeys([*near, *known[-5:]]))
