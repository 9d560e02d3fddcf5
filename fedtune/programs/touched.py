"""The files that a program writes outside its trial's folder, while it runs.

A program's folders are compared before and after, and the files that its processes hold open are looked at meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from fedtune.programs.program_file import Program

MOST = 50_000  # files that are looked at
LOOK = 0.05  # seconds between two looks at open files
SHARED = ("__pycache__", ".lock", ".pyc")  # ends of names: what any number of processes may write at once
NOT_FILES = ("/dev/", "/proc/", "/sys/")
Seen = dict[str, tuple[int, int, int]]  # what changes when a file is written, by path


def folders(program: Program) -> list[Path]:
    """Where a program can be expected to write: where it runs, and the project that this is a part of.

    That is the git repository, or else the folder beside the program file; results often lie in `../results`.
    """
    folder = Path(program.folder).resolve()
    home = Path.home()
    for above in (folder, *folder.parents):
        if above != home and (above / ".git").exists():
            return [above]
    base = Path(program.path).resolve().parent
    if folder != base and folder.is_relative_to(base):
        return [base / folder.relative_to(base).parts[0]]
    return [folder]


class Touched:
    """Finds what is written in its `with` block."""

    def __init__(self, places: Sequence[Path], own: Path, processes: Callable[[], list[int]]) -> None:
        """places: whose files are compared; own: the folder that all trials' own are in; processes: who writes."""
        self.found: set[Path] = set()
        self.whole = True  # no file was left out because there are too many
        self._places, self._own, self._processes = places, own.resolve(), processes
        self._open: set[str] = set()
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Remember the files as they are, and begin to look at open ones."""
        self._before = self._seen()
        self._looker = threading.Thread(target=self._look, daemon=True, name="open files")
        self._looker.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Compare."""
        self._over.set()
        self._looker.join()
        after = self._seen()
        paths = self._open | {path for path, state in after.items() if self._before.get(path) != state}
        self.found = {Path(path) for path in paths if not Path(path).is_relative_to(self._own)}

    def _seen(self) -> Seen:
        found: Seen = {}
        for entry in _files(self._places):
            if len(found) >= MOST:
                self.whole = False
                break
            with suppress(OSError):  # gone meanwhile
                status = entry.stat(follow_symlinks=False)
                found[entry.path] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return found

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            for process in self._processes():
                with suppress(OSError):  # it has ended, or is another user's
                    self._open |= set(_written(process))


def _files(places: Sequence[Path]) -> Iterator[os.DirEntry[str]]:
    """All files below folders, without hidden folders."""
    todo = [str(place) for place in places]
    while todo:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(SHARED):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    todo += [] if entry.name.startswith(".") else [entry.path]
                elif entry.is_file(follow_symlinks=False):
                    yield entry


def _written(process: int) -> Iterator[str]:
    """The files that a process has open for writing."""
    for number in os.listdir(f"/proc/{process}/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/{process}/fd/{number}")
            if not path.startswith("/") or path.startswith(NOT_FILES) or path.endswith((" (deleted)", *SHARED)):
                continue
            if _flags(process, number) & os.O_ACCMODE and os.path.isfile(path):
                yield path


def _flags(process: int, number: str) -> int:
    with open(f"/proc/{process}/fdinfo/{number}") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)


def begun(processes: Sequence[int]) -> dict[int, str]:
    """When each of these processes began, as the system counts; those that are gone are left out."""
    found = {}
    for process in processes:
        with suppress(OSError, IndexError), open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()
            if state[0] != b"Z":
                found[process] = state[19].decode()
    return found
