"""fedtune jobs list | logs ID | stop ID: the searches that `fedtune submit` sent to a cluster."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from typing import TYPE_CHECKING

from rich.table import Table

from fedtune.cluster import jobs
from fedtune.core.terminal import console, say
from fedtune.user_code.command import Parser, guarded

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails


def parser() -> argparse.ArgumentParser:
    """The command line of `fedtune jobs`."""
    p = Parser(prog="fedtune jobs", description="Manage the jobs that fedtune submit sent to a cluster.")
    actions = p.add_subparsers(dest="action", required=True, metavar="list|logs|stop")
    listing = actions.add_parser("list", help="list all jobs")
    logs = actions.add_parser("logs", help="print a job's log")
    stopping = actions.add_parser("stop", help="stop a job like Ctrl-C; its results are kept")
    known = ", ".join(f"${name}" for name in jobs.ENVIRONMENT)
    for action in (listing, logs, stopping):
        action.add_argument("--address", metavar="URL", help=f"as for submit (default {known}, {jobs.HERE})")
        action.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    for action in (logs, stopping):
        action.add_argument("job", metavar="ID", help="the job's name, as submit and list print it")
    logs.add_argument("--follow", action="store_true", help="keep printing until the job ends")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune jobs` and return its exit status."""
    args = parser().parse_args(argv)
    address = args.address or jobs.given_address() or jobs.HERE
    with jobs.reached(address) as client:
        ours = jobs.ours(client)
        if args.action == "list":
            _show(ours)
            return 0
        if args.job not in ours:
            raise jobs.unknown_job(args.job, list(ours))
        if args.action == "stop":
            return jobs.stop(client, ours[args.job])
        if args.follow:
            return jobs.follow(client, args.job, address)
        print(client.get_job_logs(args.job), end="")
    return 0


def _show(ours: dict[str, JobDetails]) -> None:
    if not ours:
        say("no job of fedtune's")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("job", "status", "started", "took", "command"):
        table.add_column(column, overflow="fold")
    for name, job in ours.items():
        began = (job.start_time or 0) / 1000
        took = datetime.timedelta(seconds=round((job.end_time / 1000 if job.end_time else time.time()) - began))
        started = datetime.datetime.fromtimestamp(began).isoformat(" ", "seconds")
        table.add_row(name, job.status.lower(), started, str(took), job.entrypoint.rpartition("python -m fedtune ")[2])
    console(width=None if sys.stdout.isatty() else 240).print(table)
