"""Copy Ray's files of a search into its folder, so that a crash between any two writes leaves them consistent.

Ray copies them in place, several at once.  If a driver or a machine dies meanwhile, states are truncated, from two
generations, or ahead of the logs.  Here each file is replaced atomically, and trials' logs are copied before the states
that refer to them.  States that belong together are replaced together: a list names those that are completely written,
and whoever resumes the search finishes what its driver began.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
from pathlib import Path

from fedtune.core import bounded
from fedtune.runs.files import RunFiles, write_whole

PART = ".part"  # suffix of a file that will replace the one without it
STATE = re.compile(
    r"[\w-]+[-_]states?-[\w-]+\.(json|pkl)"
)  # states of trials, searcher, concurrency limit and callbacks


class StateCopies:
    """Copies files that have changed since the last time from Ray's folder to the study's folder."""

    def __init__(self) -> None:
        """Initially no file is known to be copied."""
        self._copied: dict[Path, tuple[int, int, int]] = {}  # source -> its status when it was copied last

    def copy(self, source: Path, run: Path) -> None:
        """Bring the study's folder up to date; OSError if it cannot be written to."""
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
        """A file's current status; None if its copy is identical."""
        status = source.stat()
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if copy.exists() and (self._copied.get(source) == now or filecmp.cmp(source, copy, shallow=False)):
            return None
        return now


def commit_states(run: Path) -> None:
    """Finish replacing states that a driver had completely written before it died.  Only for the folder's driver."""
    listed = RunFiles(run).states_file
    try:
        names = json.loads(bounded.read(listed))
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        names = []  # the list was damaged after it was written, as it is written atomically
    for name in names if isinstance(names, list) else []:
        if STATE.fullmatch(str(name)) and (part := run / (name + PART)).exists():
            part.replace(run / name)
    listed.unlink(missing_ok=True)


def _part(source: Path, copy: Path) -> Path:
    """A copy beside its destination."""
    part = copy.with_name(copy.name + PART)
    shutil.copyfile(source, part)
    return part
