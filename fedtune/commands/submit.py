"""fedtune submit --address http://head:8265 -- <search arguments>: the search as a job on a Ray cluster."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fedtune.cluster import jobs
from fedtune.core.errors import UserError
from fedtune.core.importing import quick_imports
from fedtune.core.terminal import say
from fedtune.tuning.options import arguments as cli
from fedtune.user_code.command import Parser, guarded

if TYPE_CHECKING:
    from fedtune.studies.submission import Submission

COMMANDS = ("search", "compare", "resume", "extend", "replay")  # what a cluster can be given

ABOUT = """\
Everything is checked here first, then the search runs as a job of the cluster and continues without this terminal.
Paths among the search's arguments are the cluster's: --storage-path is needed, a folder that all its nodes share;
--data-dir names data that its head can read.  Your own files (--algo FILE.py, --space FILE.py, …) are read here, and
sent with what they import from their folder.  Without --data-dir a data set other than digits is sent too, from --data
(resume, extend, replay want --data again).  A program file (--program FILE.toml) is sent with its folder, and runs in a
copy in the cluster's storage; with --in-place it is not sent: all nodes have that folder.  fedtune itself goes along,
other packages do not: the cluster has Ray, torch and the rest of fedtune's requirements.  The arguments may begin with
a command: search, compare, resume, extend or replay.

A cluster that asks for a token gets yours: from RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments before `--`."""
    p = Parser(
        prog="fedtune submit",
        usage="fedtune submit --address URL [options] -- SEARCH ARGUMENTS",
        description=ABOUT,
    )
    known = ", ".join(f"${name}" for name in jobs.ENVIRONMENT)
    p.add_argument(
        "--address", metavar="URL", help=f"address of the cluster's dashboard, http://head:8265 (default {known})"
    )
    p.add_argument(
        "--name", help="name of the job (default: the run's name; with the time, if --name was given to the search)"
    )
    p.add_argument("--no-follow", action="store_true", help="return at once, without following the job's log")
    p.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with the data sets on this machine (default $FEDTUNE_DATA_DIR, data)",
    )
    p.add_argument(
        "--in-place", action="store_true", help="a program's folder is not sent: the cluster has it at the same path"
    )
    p.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    return p


@guarded
def main(argv: list[str] | None = None) -> int:
    """Run `fedtune submit` and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:at])
    if not words[at + 1 :]:
        raise UserError(
            "the search's arguments go after --, but none were given; for instance "
            "fedtune submit --address http://head:8265 -- --algo gfpl --storage-path /shared/runs"
        )
    address = args.address or jobs.given_address()
    if not address:
        raise UserError("--address of the cluster is needed, but none was given; for instance http://head:8265")
    if args.name is not None and not re.fullmatch(r"[\w.-]+", args.name):
        raise UserError(f"a job's --name may have letters, digits, '.', '_' and '-', but got {args.name!r}")
    with tempfile.TemporaryDirectory() as here:
        job = prepare(words[at + 1 :], args.name, args.data, Path(here) / "job.zip", args.in_place)
        with jobs.reached(address) as client:
            jobs.submit(client, job.name, job.entrypoint, job.package)
            say(f"job: {job.name}")
            say(f"run on the cluster: {job.run}")
            if args.no_follow:
                say(jobs.next_commands(job.name, address))
                return 0
            return jobs.follow(client, job.name, address)


def prepare(words: list[str], name: str | None, data: Path | None, package: Path, in_place: bool = False) -> Submission:
    """Check and pack what comes after `--`: a search's arguments, or a command and its."""
    with quick_imports():
        from fedtune.studies import submission
        from fedtune.studies.options import ComparisonOptions
        from fedtune.tuning.options.options import SearchOptions

    command, arguments = (words[0], words[1:]) if words[0] in COMMANDS else ("search", words)
    args = importlib.import_module(f"fedtune.commands.{command}").parser().parse_args(arguments)
    kind = ComparisonOptions if command == "compare" else SearchOptions
    options = kind(**cli.given(args, kind, *(() if command in ("search", "compare") else cli.OF_MACHINE)))
    return submission.prepare(
        command=command,
        arguments=arguments,
        options=options,
        run=getattr(args, "run", None),
        name=name,
        data=data,
        package=package,
        in_place=in_place,
    )
