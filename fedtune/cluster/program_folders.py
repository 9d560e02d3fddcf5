"""The folders of programs that go to a cluster with a job, and where all of its nodes see them.

They travel in the job's own folder, which only the job has.  There this module is run before the search: it copies them
to the cluster's storage, where trials run, what they write stays, and `fedtune resume` finds them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from fedtune.cluster.package import LIMIT
from fedtune.core.errors import UserError
from fedtune.core.terminal import few
from fedtune.runs.files import RECORDS
from fedtune.user_code.command import guarded

MANY = 20_000  # files


def sent(home: Path) -> tuple[list[Path], list[str]]:
    """The files of a program's folder that are sent, and the names of what is not; UserError for too large a folder.

    Left out are hidden files, virtual environments, caches, folders of earlier runs, and links to folders.
    """
    found, left, total = list[Path](), list[str](), 0
    for place, folders, names in os.walk(home):
        here = Path(place)
        unsent = [name for name in folders if _is_left_out(here / name)]
        folders[:] = sorted(set(folders) - set(unsent))
        unsent += [name for name in names if name.startswith(".") or not (here / name).is_file()]
        left += [str((here / name).relative_to(home)) for name in sorted(unsent) if name != "__pycache__"]
        files = [here / name for name in sorted(set(names) - set(unsent))]
        found += files
        total += sum(file.stat().st_size for file in files)
        if total > LIMIT or len(found) > MANY:
            what = f"{LIMIT / 2**20:g} MiB" if total > LIMIT else f"{MANY} files"
            raise UserError(
                f"a program's folder is sent if it has at most {what}, but {home} has more, up to {here}; put the data "
                "elsewhere; or put the folder where all nodes of the cluster have it, and give --in-place before --"
            )
    return found, left


def _is_left_out(folder: Path) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name == "__pycache__"
        or folder.is_symlink()
        or any((folder / name).exists() for name in ("pyvenv.cfg", *RECORDS))
    )


def require_inside(home: Path, places: tuple[Path, ...], file: str) -> None:
    """UserError for a program that runs outside of the folder that is sent."""
    for place in places:
        if not place.is_relative_to(home):
            raise UserError(
                f"a program that is sent must run in the folder of its file, {home}, or below, but {file} runs in "
                f"{place}; move the file there or above, or give --in-place before -- if all nodes have these folders"
            )


def in_words(home: Path, files: list[Path], left: list[str], there: Path) -> str:
    """What is sent of a folder, and where it will be."""
    said = f"the program's folder {home} is sent: {len(files)} files, which run in {there}"
    return said + (f"; without {few(left)}" if left else "")


@guarded
def main(argv: list[str] | None = None) -> int:
    """Copy a folder of the job's to the cluster's storage: `python -m fedtune.cluster.program_folders FROM TO`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    args = parser.parse_args(argv)
    if os.path.lexists(args.to):
        raise UserError(f"a job's programs need a new folder, but {args.to} exists; give the search another --name")
    args.to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(args.source, args.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
