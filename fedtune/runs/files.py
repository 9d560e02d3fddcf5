"""The files of a run: their paths, its record, and the lock that allows only one driver in the folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedtune.core import about
from fedtune.core.errors import UserError, shown
from fedtune.core.terminal import command_line, near
from fedtune.runs import reading

BYTES = 200  # the longest folder name: files beside it have longer names, and file systems allow 255 bytes
RECORDS = ("run.json", "compare.json", "reproduce.json", "levels.json")  # the records' names
SEARCH, COMPARISON, REPRODUCTION, LEVELS = RECORDS
WIDENED = "+widened"  # after the name of a comparison's search that goes on over wider ranges
AGAIN = "-again"  # after the name of an algorithm that takes part twice, as a control
OVER = ("finished", "nothing found")  # states of a study that resume does not go on with
WAITING = "waiting"  # the state of a comparison whose turn among several has not come
BROKEN_OFF = ("abandoned", "interrupted", "failed")  # states of one that it goes on with
KINDS = {SEARCH: "a search", COMPARISON: "a comparison", REPRODUCTION: "a reproduction", LEVELS: "a budget study"}


class _File:
    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFiles, owner: type | None = None) -> Path:
        return run.path / self.name


class RunFiles:
    """The paths of a study of any kind.  Nothing needs to exist."""

    trials_file = _File("trials.parquet")  # a row per trial, written when the search ends
    rounds_file = _File("rounds.parquet")  # a row per trial and round
    best_file = _File("best.yaml")  # the best configuration, for `fedtune run --config`
    clients_file = _File("clients.parquet")  # each client's results in the fresh-seed runs
    privacy_file = _File("privacy.json")  # what its models cost in ε, with privacy
    front_file = _File("front.parquet")  # the Pareto front of rounds, with several objectives
    study_file = _File("study.journal")  # the Optuna study, which gets every trial when it ends
    suggestions_file = _File("suggestions.jsonl")  # every configuration in the order in which it was suggested
    own_folder = _File("own")  # copies of the user's code
    lock_file = _File("driver.lock")  # locked by the driver
    reserve_file = _File(".reserve")  # reserved disk space for the search's end
    states_file = _File(".states")  # the names of Ray's states that are replaced together
    probe_file = _File(".probe")  # written to test whether the folder is writable
    choice_folder = _File("choice")  # runs of a search's best trials on more seeds, a file each
    final_folder = _File("final")  # a search's fresh-seed runs, a file each
    ray_log_file = _File("ray.log")  # Ray's detailed messages about its nodes
    dashboard_file = _File(".dashboard")  # the address of Ray's dashboard, if the driver started one
    outputs_folder = _File("outputs")  # what programs printed, a folder for each trial and fresh-seed run
    lost_folder = _File("lost")  # trials that are missing from Ray's state
    evaluations_folder = _File("evaluations")  # a comparison's fresh-seed runs, a file each
    evaluations_file = _File("evaluations.parquet")  # the last round of each of these runs
    evaluation_rounds_file = _File("evaluation_rounds.parquet")  # every round of these runs
    runs_folder = _File("runs")  # a reproduction's runs, a file each
    table_file = _File("table.csv")  # a comparison's or reproduction's table
    markdown_file = _File("table.md")
    latex_file = _File("table.tex")
    method_file = _File("method.md")  # a comparison's method, for a paper
    method_latex_file = _File("method.tex")
    references_file = _File("references.bib")
    pairs_file = _File("pairs.csv")  # a comparison's algorithms, pairwise
    against_file = _File("against.csv")  # each algorithm against the baselines
    budget_file = _File("budget.csv")  # the best of each search after 1, 2, … trials
    levels_file = _File("levels.csv")  # a budget study's algorithms at each of its levels

    def __init__(self, path: str | Path, record_name: str = SEARCH) -> None:
        """record_name: one of RECORDS."""
        self.path = Path(path)
        self.record_file = self.path / record_name
        self._added: dict[str, Any] = {}

    def __repr__(self) -> str:
        """The class and the folder."""
        return f"{type(self).__name__}({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.absolute().name

    @property
    def is_comparison(self) -> bool:
        """Whether the folder is a comparison's."""
        return (self.path / COMPARISON).exists()

    @property
    def record(self) -> dict[str, Any]:
        """The record's content; UserError if it is missing, damaged or in another format."""
        try:
            content = reading.record(self.record_file)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                kind = require_kind(self.path)
                what = f"this takes the folder of {KINDS[self.record_file.name]}, but"
                goes_on = "; repeat the command that started it to continue it" * (kind == REPRODUCTION)
                raise UserError(f"{what} {near(self.path)} is {KINDS[kind]}'s{goes_on}") from error
            raise self.damaged(reading.short(error)) from error
        about.require_format(self.record_file, content.get("format"), content.get("versions", {}).get("fedtune"))
        return content

    @property
    def of_privacy(self) -> list[str]:
        """What a search cost in privacy, in lines; none without it."""
        content = json.loads(self.privacy_file.read_bytes()) if self.privacy_file.exists() else {}
        return list(map(str, content.get("lines") or []))

    def record_with(self, *names: str) -> dict[str, Any]:
        """The record; UserError also if it lacks one of these entries."""
        content = self.record
        if lacking := [name for name in names if name not in content]:
            raise self.damaged(f"it lacks {', '.join(lacking)}")
        return content

    def damaged(self, why: object) -> UserError:
        """The error for a record that cannot be used."""
        file = self.record_file.name
        return UserError(f"{near(self.path)} is not a study folder: {file} is missing or damaged ({why})")

    def add(self, **more: Any) -> None:
        """Add entries for the next time that the record is written."""
        self._added |= more

    @property
    def entries(self) -> dict[str, Any]:
        """The entries that the record will have besides the state."""
        return self._added

    def write(self, state: str, **more: Any) -> None:
        """Write the record atomically: its format, the added entries, the state, and `more`, which is not kept."""
        self.path.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
        write_json(self.record_file, {"format": about.FORMAT} | self._added | {"state": state} | more)

    @property
    def fresh(self) -> bool:
        """Whether the folder does not exist, or holds only what a driver leaves that died before it wrote a record."""
        early = {self.lock_file.name, self.own_folder.name, *map(_part_of, RECORDS)}
        if not os.path.lexists(self.path):
            return True
        return self.path.is_dir() and {f.name for f in self.path.iterdir()} <= early

    def make(self) -> None:
        """Create the folder, or reuse that of a driver which died before it began; UserError if another run has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.fresh:
            folder = near(self.path)
            raise UserError(f"a run needs a new folder, but another run just created {folder}; give another --name")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for one driver, until its process ends at the latest.  UserError if another driver has it."""
        lock, folder = _locked(self.lock_file), near(self.path)
        if lock is None:
            raise UserError(f"a run can have only one driver, but another is running in {folder}; wait, or stop it")
        try:
            yield
        finally:
            lock.release()

    def state_in(self, record: Mapping[str, Any]) -> str:
        """The state that its record has, or abandoned if it should be running but has no driver."""
        state = str(record.get("state", "unknown"))
        return "abandoned" if state == "running" and not self.driven else state

    @property
    def driven(self) -> bool:
        """Whether a driver is running, on this machine or on another that shares the folder and its locks."""
        if not self.lock_file.exists():
            return False
        if lock := _locked(self.lock_file):
            lock.release()
        return lock is None


def kind_of(folder: Path) -> str | None:
    """The name of the record in a study's folder; None if there is none, or if the folder is closed to this user."""
    return next((name for name in reversed(RECORDS) if os.path.exists(folder / name)), None)


def levels_of(folder: Path) -> list[RunFiles]:
    """The comparisons of a budget study, in the order of their levels; none of another study."""
    names = RunFiles(folder, LEVELS).record_with("levels")["levels"] if kind_of(folder) == LEVELS else []
    return [RunFiles(folder / name, COMPARISON) for name in names]


def lineage(run: RunFiles) -> Iterator[RunFiles]:
    """A search, and those that it extends, which lie beside it."""
    seen: set[str] = set()
    while run.path.is_dir() and run.name not in seen:
        yield run
        seen.add(run.name)
        earlier = run.record.get("extends")
        if not earlier:
            return
        run = RunFiles(run.path.absolute().parent / Path(earlier).name)


def goes_on(study: Path, record: Mapping[str, Any], command: Callable[..., str] = command_line) -> str:
    """How a study goes on that broke off, in words.  command: writes a command of fedtune."""
    if to_resume := resumed_as(study, record):
        return f"{command('resume', to_resume)} continues it"
    return "the same command with another --name begins it again"


def resumed_as(study: Path, record: Mapping[str, Any]) -> Path | None:
    """What resume takes to go on with a study: what it is a part of, if anything; None for an extension or a replay."""
    if kind_of(study.absolute().parent) in (COMPARISON, LEVELS):
        return resumed_as(study.parent if study.name else study.absolute().parent, {})
    return None if {"extends", "replays"} & record.keys() else study


def require_kind(folder: Path, advice: str = "") -> str:
    """The name of the record in a study's folder; UserError if there is none."""
    if kind := kind_of(folder):
        return kind
    what = f"it has none of {', '.join(RECORDS)}" if os.path.exists(folder) else "it does not exist"
    raise UserError(f"{near(folder)} is not a study folder: {what}{advice}")


def _locked(file: Path) -> FileLock | None:
    """The acquired lock of a file (if its file system has locks); None if another process has it."""
    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except (OSError, NotImplementedError):
        pass  # a file system without locks, or a folder that is not ours
    return lock


def require_name(name: str) -> None:
    """UserError for a --name that is not a valid folder name on every file system and in every shell."""
    if not re.fullmatch(r"(?!-)[\w.+=-]{1,100}", name) or name in (".", "..") or len(os.fsencode(name)) > BYTES:
        raise UserError(
            "--name must be a plain folder name of letters, digits, '.', '_', '+', '=' and '-' (not first), "
            f"at most 100, but got {shown(name)}"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically."""
    part = path.with_name(_part_of(path.name))
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _part_of(name: str) -> str:
    return f"{name}.part"


def append_line(path: Path, line: str) -> None:
    """Append a line to a log whose last line may be truncated, because its writer died."""
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        complete = not end or file.read(1) == b"\n"
        file.write(("" if complete else "\n").encode() + line.encode() + b"\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as a JSON file atomically."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def search_name(algorithm: str, number: int) -> str:
    """The name of an algorithm's search number 0, 1, … in a comparison's folder."""
    return f"{algorithm}+{number + 1}" if number else algorithm


def search_of(folder: Path) -> tuple[str, int]:
    """The algorithm's name and the number 0, 1, … of a search, by its folder in a comparison's."""
    name, _, number = folder.absolute().name.removesuffix(WIDENED).rpartition("+")
    return (name, int(number) - 1) if name and number.isdigit() else (folder.name.removesuffix(WIDENED), 0)


def searches_of(comparison: Path, algorithm: str, searches: int = 1) -> list[Path]:
    """The folders of an algorithm's searches in a comparison that have begun.

    Of each, where ranges were widened: the first, and the one that goes on.
    """
    names = [search_name(algorithm, k) for k in range(searches)]
    folders = [comparison / f"{name}{more}" for name in names for more in ("", WIDENED)]
    return [folder for folder in folders if RunFiles(folder).record_file.exists()]
