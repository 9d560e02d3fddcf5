"""A search for a cluster: checked here, its arguments rewritten for the cluster, and packed."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtune.cluster import package as packing
from fedtune.cluster import program_folders
from fedtune.core.errors import UserError
from fedtune.core.terminal import say
from fedtune.data import datasets
from fedtune.experiment import partitioning
from fedtune.experiment.experiment import built_in
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.tuning import plan
from fedtune.tuning import space as spaces
from fedtune.tuning.options.options import SearchOptions, flag
from fedtune.user_code import content_hashes, user_files
from fedtune.user_code.user_files import UserFile

GIVEN = "given"  # the folder of the user's files in the job's, where they hide no module
PROGRAMS = f"{GIVEN}/programs"  # of programs' folders


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission:
    """What is sent to a cluster, and the line that runs it there.

    name        the job's.
    run         its folder on the cluster.
    arguments   of the command, as the cluster is to have them.
    package     the job's working folder, as a .zip here.
    """

    name: str
    run: Path
    command: str
    arguments: list[str]
    package: Path
    programs: Path | None = None  # where the folders of its programs are put first

    @property
    def entrypoint(self) -> str:
        """The line that the cluster's shell runs."""
        runs = shlex.join(["python", "-m", "fedtune", self.command, *self.arguments, "--address", "auto"])
        if self.programs is None:
            return runs
        put = ["python", "-m", "fedtune.cluster.program_folders", PROGRAMS, str(self.programs)]
        return f"{shlex.join(put)} && exec {runs}"  # exec: what stops the job stops the search


def prepare(
    command: str,
    arguments: list[str],
    options: SearchOptions,
    run: Path | None,
    name: str | None,
    data: Path | None,
    package: Path,
    in_place: bool = False,
) -> Submission:
    """Check the search to submit, and write the package; UserError if anything is wrong.  Nothing is sent.

    command     search or compare, or one of those that continue a run.
    arguments   the command's.
    options     what they say.
    run         the run that is continued, if one is.
    name        the job's; None: from the run's.
    data        the folder with torchvision's layout here, if one was named.
    package     the .zip to write.
    in_place    whether the cluster has the programs' folders where this machine has them.
    """
    if options.address:
        raise UserError(
            f"a submitted search uses the cluster that it runs on, but got --address {options.address} after "
            "--; give it "
            "before"
        )
    programs: Path | None = None
    if run is None:
        folder, arguments, programs = _search(arguments, options, data, package, in_place)
        default = folder.name if options.name is None else f"{folder.name}-{_now()}"
    else:
        folder, arguments = _continued(arguments, run, data, package)
        default = f"{command}-{folder.name}-{_now()}"
    return Submission(
        name=name or default, run=folder, command=command, arguments=arguments, package=package, programs=programs
    )


def _search(
    arguments: list[str], options: SearchOptions, data: Path | None, package: Path, in_place: bool
) -> tuple[Path, list[str], Path | None]:
    """Check what is searched and pack it.

    Returns its folder, the arguments as the cluster is to have them, and where programs' folders are put there.
    """
    _require_files(options)
    storage = _on_cluster("--storage-path", Path(options.storage_path))
    with tempfile.TemporaryDirectory() as empty:  # whether the cluster's can be written to, the cluster will say
        here = dataclasses.replace(options, address="auto", storage_path=empty)
        if isinstance(here, ComparisonOptions):
            compared = comparison_plan.make(here)
            plans, name = compared.compared, compared.folder.name
            seeds = [s for p in compared.every for s in (*p.selecting, *p.choosing, *p.fresh(here.seeds))]
        else:
            planned = plan.make(here)
            plans, name = {planned.workload.name: planned}, planned.name
            seeds = [*planned.selecting, *planned.choosing, *planned.fresh(planned.final_seeds)]
    engine = {algo: p for algo, p in plans.items() if not p.workload.places}
    programs = {algo: p for algo, p in plans.items() if p.workload.places}
    given, files = ["--name", name], dict[str, Path]()
    to = storage / f"{name}-programs"
    if in_place:
        typed = {algo: str(Path(p.options.algo).resolve()) for algo, p in programs.items()}
        for p in programs.values():
            say(f"note: {p.workload.name} runs in {p.workload.places[1]}, which every node of the cluster must have")
    else:
        typed, files = _programs(programs, to)
    names = {algo: typed.get(algo, _sent(algo)) for algo in plans}
    if programs or any(algo != there for algo, there in names.items()):
        given += ["--algos" if isinstance(options, ComparisonOptions) else "--algo", ",".join(names.values())]
    if programs:
        arguments = _without(arguments, "--program")
    for p in list(engine.values())[:1]:
        more, of_data = _of_engine(p, options, data, seeds)
        given, files = given + more, files | of_data
    files |= _own(user_files.merged(*(p.own for p in engine.values())))
    if found := spaces.file_of(options.space):
        given += ["--space", f"{GIVEN}/{found[0].name}{found[1]}"]
        files |= _own(spaces.files(options.space))
    packing.write(package, files)
    return (
        storage / name,
        _without(arguments, *dict.fromkeys(given[::2])) + given,
        to if typed and not in_place else None,
    )


def _of_engine(
    planned: plan.SearchPlan, options: SearchOptions, data: Path | None, seeds: Sequence[int]
) -> tuple[list[str], dict[str, Path]]:
    """The arguments and data for what fedtune itself trains; UserError for data that are not there."""
    e = built_in(planned.workload, "fedtune submit")
    scenario, root = e.scenario, packing.data_root(data)
    given, files = list[str](), dict[str, Path]()
    if options.data_dir is not None:
        _on_cluster("--data-dir", Path(options.data_dir))
    elif (read := datasets.from_files(scenario.dataset)) and not options.download:
        files = packing.data_files(read, root)
        given += ["--data-dir", "data"]
    typed = [(flag(n), getattr(scenario, n)) for n in options.fields]
    for option, names in [*typed, *(("--metric", name) for name in e.metrics), ("--start-from", e.start_from)]:
        if (sent := _sent(names)) != names:
            given += [option, sent]
    here_too = not datasets.from_files(scenario.dataset)
    if here_too or "--data-dir" in given:  # the last that a search would refuse before it starts
        loaded = datasets.load(scenario.dataset, root)
        partitioning.require_partitions(loaded, scenario, seeds)
    return given, files


def _require_files(options: SearchOptions) -> None:
    """UserError for a program that has no file: the cluster would not know what goes with it."""
    for name in ("program", "flower"):
        if value := getattr(options, name):
            raise UserError(f"a program is submitted by its program file, but got {flag(name)} {value}; write one")


def _programs(programs: Mapping[str, plan.SearchPlan], to: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """Where each program's file will be on the cluster, and the files that are sent for it."""
    typed, files, homes = dict[str, str](), dict[str, Path](), dict[Path, Path]()
    for algo, p in programs.items():
        home, *others = p.workload.places
        program_folders.require_inside(home, tuple(others), p.options.algo)
        if home not in homes:
            taken = {place.name for place in homes.values()}
            named = (f"{home.name}-{i}" if i else home.name for i in itertools.count())
            homes[home] = to / next(name for name in named if name not in taken)
            found, left = program_folders.sent(home)
            say(f"note: {program_folders.in_words(home, found, left, homes[home])}")
            there = Path(PROGRAMS, homes[home].name)
            files |= {str(there / file.relative_to(home)): file for file in found}
        typed[algo] = str(homes[home] / Path(p.options.algo).resolve().name)
    return typed, files


def _own(files: Iterable[UserFile]) -> dict[str, Path]:
    """The user's files, as they lie in the job's folder and here; a folder's one by one.

    UserError for modules of one name from two folders, which the job would have in one.
    """
    found: dict[str, Path] = {}
    for file in files:
        for here, there in content_hashes.copied(Path(file.path), Path(GIVEN, file.name)).items():
            if found.setdefault(str(there), here) != here:
                raise UserError(f"a job has one folder of your files, but {found[str(there)]} and {here} have one name")
    return found


def _sent(names: Any) -> Any:
    """Names with commas between them, a user's files as the job will have them."""
    if not isinstance(names, str):
        return names
    return user_files.moved(names, lambda file: f"{GIVEN}/{file.name}")


def _continued(arguments: list[str], run: Path, data: Path | None, package: Path) -> tuple[Path, list[str]]:
    """Pack what continues a run, whose data set only the cluster knows."""
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
    """The path; UserError unless it is absolute, as the job's own folder is removed when the job ends."""
    if not path.is_absolute():
        raise UserError(
            f"{what} must be the absolute path of a folder that all nodes of the cluster share, but got {path}; "
            f"for instance /shared/{path.name}"
        )
    return path


def _without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments without these flags and their values."""
    p = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name in flags:
        p.add_argument(name)
    return p.parse_known_args(arguments)[1]


def _now() -> str:
    return datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
