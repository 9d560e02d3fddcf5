"""python -m fedtune.submit --address http://head:8265 -- <search arguments>: the search as a job on a Ray cluster."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import fedtune
from fedtune import arguments as cli
from fedtune import compare, extend, replay, resume, search
from fedtune.cluster import jobs
from fedtune.cluster import package as packing
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.federated import partitioning
from fedtune.studies import comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import plan
from fedtune.tuning import space as spaces
from fedtune.tuning.options import SearchOptions

COMMANDS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "search": search.parser, "compare": compare.parser, "resume": resume.parser, "extend": extend.parser,
    "replay": replay.parser,
}  # fmt: skip
ENVIRONMENT = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}  # for a stopped search to write down what it found; Ray's own: 3

ABOUT = """\
Everything is checked here first, then the search runs as a job of the cluster and goes on without this terminal.
Paths among the search's arguments are the cluster's: --storage-path is needed, a folder that all its nodes share;
--data-dir names data that its head can read.  Only a --space file is read here, and sent.  Without --data-dir a data
set other than digits is sent too, from --data (resume, extend, replay want --data again).  fedtune itself goes along,
other packages do not: the cluster has Ray, torch and the rest of fedtune's requirements.  The arguments may begin with
a command: search, compare, resume, extend or replay.
A cluster that asks for a token gets yours: from RAY_AUTH_TOKEN, the file RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token.
"""


@dataclasses.dataclass(frozen=True)
class Job:
    """What is sent.

    run         its folder on the cluster.
    arguments   of the command, as the cluster is to have them.
    package     the job's working folder, as a .zip here.
    """

    name: str
    run: Path
    command: str
    arguments: list[str]
    package: Path

    @property
    def entrypoint(self) -> str:
        """The line that the cluster's shell runs."""
        return shlex.join(["python", "-m", f"fedtune.{self.command}", *self.arguments, "--address", "auto"])


def parser() -> argparse.ArgumentParser:
    """The arguments before `--`."""
    p = cli.Parser(
        prog="fedtune submit", usage="fedtune submit --address URL [options] -- SEARCH ARGUMENTS",
        description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    known = ", ".join(f"${name}" for name in jobs.ENVIRONMENT)
    p.add_argument("--address", metavar="URL", help=f"of the cluster's dashboard, http://head:8265 (default {known})")
    p.add_argument("--name", help="of the job (default: the run's; with a time, if that was given)")
    p.add_argument("--no-follow", action="store_true", help="do not wait for its log and end")
    p.add_argument(
        "--data", type=Path, metavar="DIR", help="torchvision's layout here (default $FEDTUNE_DATA_DIR, data)"
    )
    p.add_argument("--debug", action="store_true", help="show the stack of an error")
    return p


@cli.guarded
def main(argv: list[str] | None = None) -> int:
    """The command."""
    words = sys.argv[1:] if argv is None else argv
    at = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:at])
    if not words[at + 1 :]:
        raise UserError(
            "what the cluster is to search comes after --, but nothing came; for instance "
            "fedtune submit --address http://head:8265 -- --algo gfpl --storage-path /shared/runs"
        )
    address = args.address or jobs.given_address()
    if not address:
        raise UserError("--address of the cluster is needed, but none was given; for instance http://head:8265")
    if args.name is not None and not re.fullmatch(r"[\w.-]+", args.name):
        raise UserError(f"a job's --name must be of letters, digits, '.', '_' and '-', but got {args.name!r}")
    with tempfile.TemporaryDirectory() as here:
        job = prepare(words[at + 1 :], args.name, args.data, Path(here) / "job.zip")
        with jobs.reached(address) as client:
            if job.name in {j.submission_id for j in client.list_jobs()}:
                raise UserError(f"a job needs a new name, but the cluster has had a {job.name}; give another --name")
            client.submit_job(
                entrypoint=job.entrypoint, submission_id=job.name, metadata={jobs.MARK: fedtune.__version__},
                runtime_env={"working_dir": str(job.package), "env_vars": ENVIRONMENT},
            )  # fmt: skip
            say(f"job: {job.name}")
            say(f"run on the cluster: {job.run}")
            if args.no_follow:
                say(jobs.how_to_go_on(job.name, address))
                return 0
            return jobs.follow(client, job.name, address)


def prepare(words: list[str], name: str | None, data: Path | None, package: Path) -> Job:
    """Check what is to be submitted, and write the package; UserError for whatever is wrong.  Nothing is sent.

    words     a search's arguments, or a command and its.
    name      of the job; None: from the run's.
    data      the folder with torchvision's layout here, if one was named.
    package   the .zip to write.
    """
    command, arguments = (words[0], words[1:]) if words[0] in COMMANDS else ("search", words)
    args = COMMANDS[command]().parse_args(arguments)
    kind = ComparisonOptions if command == "compare" else SearchOptions
    options = kind(**cli.given(args, kind, *(() if command in ("search", "compare") else cli.OF_MACHINE)))
    if options.address:
        raise UserError(
            f"the search joins the cluster that it runs on, but got --address {options.address} after --; give it "
            "before"
        )
    if command in ("search", "compare"):
        run, arguments = _search(command, arguments, options, data, package)
        default = run.name if options.name is None else f"{run.name}-{_now()}"
    else:
        run, arguments = _other(arguments, args.run, data, package)
        default = f"{command}-{run.name}-{_now()}"
    return Job(name or default, run, command, arguments, package)


def _search(
    command: str, arguments: list[str], options: SearchOptions, data: Path | None, package: Path
) -> tuple[Path, list[str]]:
    """Check what is searched and pack it.  Returns its folder, and the arguments as the cluster is to have them."""
    storage = _on_cluster("--storage-path", Path(options.storage_path))
    with tempfile.TemporaryDirectory() as empty:  # whether the cluster's can be written to, the cluster will say
        here = dataclasses.replace(options, address="auto", storage_path=empty)
        if isinstance(here, ComparisonOptions):
            compared = comparison_plan.make(here)
            planned, name, fresh = compared.first, compared.folder.name, here.seeds
        else:
            planned = plan.make(here)
            name, fresh = planned.name, planned.final_seeds
    scenario, root = planned.experiment.scenario, packing.data_root(data)
    given, files = ["--name", name], {}
    if options.data_dir is not None:
        _on_cluster("--data-dir", Path(options.data_dir))
    elif scenario.dataset != "digits" and not options.download:
        files = packing.data_files([scenario.dataset], root)
        given += ["--data-dir", "data"]
    if found := spaces.file_of(options.space):
        sent = f"given/{found[0].name}"  # in a folder of its own, where it hides no module
        files[sent] = found[0]
        given += ["--space", sent + found[1]]
    packing.write(package, files)
    if scenario.dataset == "digits" or "--data-dir" in given:  # the last that a search would refuse before it starts
        loaded = datasets.load(scenario.dataset, root)
        first = planned.experiment.seed
        partitioning.require_partitions(loaded, scenario, range(first, first + planned.seeds + fresh))
    return storage / name, _without(arguments, *given[::2]) + given


def _other(arguments: list[str], run: Path, data: Path | None, package: Path) -> tuple[Path, list[str]]:
    """Pack what goes on with a run, whose data set only the cluster knows."""
    run = _on_cluster("RUN", run)
    if data is None:
        packing.write(package, {})
        return run, arguments
    names = [n for n, s in datasets.SOURCES.items() if s.folder and (data / s.folder).is_dir()]
    if not names:
        raise UserError(f"--data must be a folder with torchvision's layout, but {data} has no data set of fedtune's")
    packing.write(package, packing.data_files(names, data))
    return run, [*_without(arguments, "--data-dir"), "--data-dir", "data"]


def _on_cluster(what: str, path: Path) -> Path:
    """The path; UserError unless it means the same in the job's own folder, which goes when the job ends."""
    if not path.is_absolute():
        raise UserError(
            f"{what} must be an absolute path, of a folder that all nodes of the cluster share, but got {path}; "
            f"for instance /shared/{path.name}"
        )
    return path


def _without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments without these flags and their values."""
    p = argparse.ArgumentParser(add_help=False)
    for flag in flags:
        p.add_argument(flag)
    return p.parse_known_args(arguments)[1]


def _now() -> str:
    return datetime.datetime.now().strftime("%Y%m%d-%H%M%S")


if __name__ == "__main__":
    sys.exit(main())
