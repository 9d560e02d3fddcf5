"""Keep trials apart: each has a folder of its own, and a copy of the program's where two would write the same."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from fedtune.core.errors import UserError

ASIDE = ".before"


def copy(folder: Path, to: Path) -> Path:
    """A copy of a folder, made anew, without git's own files and without the trials that lie in it."""
    shutil.rmtree(to, ignore_errors=True)
    trial = to.resolve().parent
    runs = {trial, trial.parent} - {folder.resolve()}  # the copy lies in them, and so do those of other trials

    def left_out(where: str, names: list[str]) -> set[str]:
        return {name for name in names if name in (".git", to.name) or Path(where, name).resolve() in runs}

    try:
        shutil.copytree(folder, to, symlinks=True, ignore=left_out)
    except (shutil.Error, OSError) as error:
        first = error.args[0][0] if isinstance(error, shutil.Error) else error
        raise UserError(f"the program's folder must be copied for each trial, but: {first}") from None
    return to


def claimed(folder: Path) -> int:
    """The folder, made and opened, if nobody else has it; 0 if somebody does."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return 0
    except OSError:  # of a file system without locks
        pass
    return opened


def put_aside(path: Path) -> None:
    """Rename a file or folder that an attempt of the same trial left: figures of that are not of this one."""
    with suppress(FileNotFoundError):
        aside = path.with_name(path.name + ASIDE)
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
