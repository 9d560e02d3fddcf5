"""Ray's files of a search, copied into its folder so that a death between any two writes leaves them whole.

Ray copies them in place, several at once: a driver or a machine that dies meanwhile leaves states that are cut off, of
two generations, or ahead of the logs.  Here each file is replaced whole, the trials' logs come before the states that
speak of them, and the states, which go together, are replaced together: what a list names is there in full, and who
goes on with the search ends what its driver began.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
from pathlib import Path

from fedtune.core import bounded
from fedtune.runs.files import RunFiles, write_whole

PART = ".part"  # of a name: what is to take the place of the file without it
STATE = re.compile(r"[\w-]+[-_]states?-[\w-]+\.(json|pkl)")  # of trials, searcher, its limit and callbacks


class StateCopies:
    """Copies from where Ray makes its files to the run's folder, of what has changed since the last time."""

    def __init__(self) -> None:
        """Nothing is known to be there yet."""
        self._copied: dict[Path, tuple[int, int, int]] = {}  # source -> what it was when it was copied last

    def copy(self, source: Path, run: Path) -> None:
        """Bring the run's folder up to date; OSError where it cannot be written to."""
        files = [f for f in source.rglob("*") if f.is_file()]
        for log in (f for f in files if f.parent != source):
            copy = run / log.relative_to(source)
            if now := self._changed(log, copy):
                copy.parent.mkdir(parents=True, exist_ok=True)
                _part(log, copy).replace(copy)
                self._copied[log] = now
        states = [f for f in files if f.parent == source and STATE.fullmatch(f.name)]
        if changed := {f: now for f in states if (now := self._changed(f, run / f.name))}:
            for state in changed:
                _part(state, run / state.name)
            write_whole(RunFiles(run).states_file, json.dumps([f.name for f in changed]))
            commit_states(run)
            self._copied |= changed

    def _changed(self, source: Path, copy: Path) -> tuple[int, int, int] | None:
        """What a file is now; None if its copy is the same."""
        status = source.stat()
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if copy.exists() and (self._copied.get(source) == now or filecmp.cmp(source, copy, shallow=False)):
            return None
        return now


def commit_states(run: Path) -> None:
    """Put the states that a driver had in full into their places, if it died on the way.  For the folder's driver."""
    listed = RunFiles(run).states_file
    try:
        names = json.loads(bounded.read(listed))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        names = []  # damaged since: it is written whole
    for name in names if isinstance(names, list) else []:
        if STATE.fullmatch(str(name)) and (part := run / (name + PART)).exists():
            part.replace(run / name)
    listed.unlink(missing_ok=True)


def _part(source: Path, copy: Path) -> Path:
    """A copy beside the place that it is for."""
    part = copy.with_name(copy.name + PART)
    shutil.copyfile(source, part)
    return part
