"""The files of a run: where each lies, its record, and the lock that lets one driver work in the folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedtune.core import about
from fedtune.core.errors import UserError, shown
from fedtune.core.terminal import near
from fedtune.runs import reading

BYTES = 200  # of a folder's name: what is written beside it has longer ones, and file systems take 255
RECORDS = SEARCH, COMPARISON, REPRODUCTION = "run.json", "compare.json", "reproduce.json"  # of each kind of run
KINDS = {SEARCH: "a search", COMPARISON: "a comparison", REPRODUCTION: "a reproduction"}


class _File:
    """A path inside the run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFiles, owner: type | None = None) -> Path:
        return run.path / self.name


class RunFiles:
    """The files of a search, a comparison or a reproduction.  Nothing needs to exist."""

    trials_file = _File("trials.parquet")  # a row per trial, written when the search ends
    rounds_file = _File("rounds.parquet")  # a row per trial and round
    best_file = _File("best.yaml")  # the best configuration, as `fedtune run --config` reads it
    clients_file = _File("clients.parquet")  # how each client did in the runs on fresh seeds
    front_file = _File("front.parquet")  # the Pareto front of rounds, with two objectives
    study_file = _File("study.journal")  # the Optuna study, which grows while the search runs
    suggestions_file = _File("suggestions.jsonl")  # every configuration in the order in which it was suggested
    own_folder = _File("own")  # copies of the user's code
    lock_file = _File("driver.lock")  # held by the driver at work
    reserve_file = _File(".reserve")  # room on the disk for the search's last words
    states_file = _File(".states")  # which of Ray's states are to be replaced, together
    probe_file = _File(".probe")  # written to see whether anything can be
    final_folder = _File("final")  # a search's runs on fresh seeds, a file each
    ray_log_file = _File("ray.log")  # what Ray says of its nodes at length
    lost_folder = _File("lost")  # trials that Ray's state does not know
    evaluations_folder = _File("evaluations")  # a comparison's runs on fresh seeds, a file each
    evaluations_file = _File("evaluations.parquet")  # their last rounds
    evaluation_rounds_file = _File("evaluation_rounds.parquet")  # all their rounds
    runs_folder = _File("runs")  # a reproduction's runs, a file each
    table_file = _File("table.csv")  # a comparison's or reproduction's table
    markdown_file = _File("table.md")
    latex_file = _File("table.tex")
    pairs_file = _File("pairs.csv")  # a comparison's algorithms, two by two
    against_file = _File("against.csv")  # each of them against the baselines

    def __init__(self, path: str | Path, record_name: str = SEARCH) -> None:
        """record_name: SEARCH, COMPARISON or REPRODUCTION."""
        self.path = Path(path)
        self.record_file = self.path / record_name
        self._noted: dict[str, Any] = {}

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
        """What the record holds; UserError if it is missing, damaged or of another format."""
        try:
            content = reading.record(self.record_file)
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and (kind := kind_of(self.path)):
                raise self.of_another_kind(kind) from error
            raise self.damaged(reading.short(error)) from error
        about.require_format(self.record_file, content.get("format"), content.get("versions", {}).get("fedtune"))
        return content

    def record_with(self, *names: str) -> dict[str, Any]:
        """The record; UserError if it lacks one of these entries, too."""
        content = self.record
        if lacking := [name for name in names if name not in content]:
            raise self.damaged(f"it lacks {', '.join(lacking)}")
        return content

    def damaged(self, why: object) -> UserError:
        """The error for a record that cannot be used."""
        file = self.record_file.name
        return UserError(f"{near(self.path)} is not a run folder: {file} is missing or damaged ({why})")

    def of_another_kind(self, kind: str) -> UserError:
        """The error for a folder whose record is another kind's."""
        goes_on = "; the command that began it goes on with it" if kind == REPRODUCTION else ""
        mine = KINDS[self.record_file.name]
        return UserError(f"this takes the folder of {mine}, but {near(self.path)} is {KINDS[kind]}'s{goes_on}")

    def add(self, **more: Any) -> None:
        """Remember more for the next time that the record is written."""
        self._noted |= more

    @property
    def noted(self) -> dict[str, Any]:
        """What the record will hold beside the state."""
        return self._noted

    def write(self, state: str, **more: Any) -> None:
        """Write the record, whole or not at all: its format, what was added, the state, and what holds only now."""
        self.path.mkdir(parents=True, exist_ok=True)  # it may have vanished meanwhile
        write_json(self.record_file, {"format": about.FORMAT} | self._noted | {"state": state} | more)

    @property
    def fresh(self) -> bool:
        """Whether the folder is not there, or holds no more than a driver leaves that died before it wrote a record."""
        early = {self.lock_file.name, self.own_folder.name, *map(_part_of, RECORDS)}
        if not os.path.lexists(self.path):
            return True
        return self.path.is_dir() and {f.name for f in self.path.iterdir()} <= early

    def make(self) -> None:
        """Make the folder, or take that of a driver which died before it began; UserError if another's is there."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.fresh:
            where = near(self.path)
            raise UserError(f"a run needs a new folder, but {where} was just made by another; give another --name")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one driver; the lock goes with its process.  UserError if another driver has it."""
        lock = _locked(self.lock_file)
        if lock is None:
            raise UserError(
                f"a run has one driver, but another is at work in {near(self.path)}; wait until it ends, or stop it"
            )
        try:
            yield
        finally:
            lock.release()

    @property
    def driven(self) -> bool:
        """Whether a driver is at work on this machine, or on another that shares the folder and its locks."""
        if not self.lock_file.exists():
            return False
        lock = _locked(self.lock_file)
        if lock is None:
            return True
        lock.release()
        return False


def kind_of(folder: Path) -> str | None:
    """The name of the record that a run's folder has; None where it has none."""
    return next((name for name in reversed(RECORDS) if (folder / name).exists()), None)


def _locked(file: Path) -> FileLock | None:
    """The file's lock, taken if its file system has locks; None if somebody else has it."""
    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except (OSError, NotImplementedError):
        pass  # a file system without locks, or a folder that is not ours
    return lock


def require_name(name: str) -> None:
    """UserError for a --name that is no folder's on every file system and in every shell."""
    if not re.fullmatch(r"(?!-)[\w.+=-]{1,100}", name) or name in (".", "..") or len(os.fsencode(name)) > BYTES:
        raise UserError(
            "--name must be a plain folder name of letters, digits, '.', '_', '+', '=' and '-', the latter not first, "
            f"at most 100, but got {shown(name)}"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    part = path.with_name(_part_of(path.name))
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _part_of(name: str) -> str:
    """What a file is called until it is whole."""
    return f"{name}.part"


def append_line(path: Path, line: str) -> None:
    """Add a line to a file of lines, of which the last may have been cut off when its writer died."""
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
        whole = not end or file.read(1) == b"\n"
        file.write(("" if whole else "\n").encode() + line.encode() + b"\n")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping as a JSON file, whole or not at all."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
