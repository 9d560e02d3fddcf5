"""The user's files in a study's folder: copies of code, and their entries in the record."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError
from fedtune.runs.files import RunFiles
from fedtune.user_code import layouts, user_files
from fedtune.user_code.user_files import UserFile

LARGEST = 10_000_000  # data up to this many bytes are copied


def to_record(files: Iterable[UserFile]) -> list[dict[str, Any]]:
    """The record's entries for these files: name, path and hash, and metadata of data."""
    return [
        {"name": f.name, "path": f.path, "sha256": f.sha256} | ({"about": f.about} if f.about else {}) for f in files
    ]


def keep(files: Iterable[UserFile], run: Path) -> None:
    """Copy code, small data, and other files that are carried along, so that the run can be resumed from its folder."""
    own, taken = RunFiles(run).own_folder, dict[str, str]()
    for file in files:
        first = taken.setdefault(file.name, file.sha256) == file.sha256
        copy = own / file.name if first else _beside(own, file.name, file.sha256)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.content is not None:
            copy.write_bytes(file.content)
            continue
        copied = layouts.copied(user_files.path_of(file.name), copy)
        if sum(one.stat().st_size for one in copied if one.is_file()) > LARGEST:
            continue
        for one, there in copied.items():  # an earlier copy may be incomplete
            there.parent.mkdir(parents=True, exist_ok=True)
            if not (there.exists() and there.samefile(one)):  # the original is gone, and this is its copy
                shutil.copyfile(one, there)


def _beside(own: Path, name: str, digest: str) -> Path:
    return own / digest[:8] / name


def restore(run: Path, record: Mapping[str, Any], trust: bool = False) -> tuple[UserFile, ...]:
    """The files that a run used, registered in this process; code comes from the study's folder.

    trust: also accept code in another user's folder.  UserError for files that have changed or are missing.
    """
    entries = record.get("own") or []
    if entries and not trust:
        require_own(run, "runs the code that it holds")
    return user_files.unchanged([_read(run, dict(entry)) for entry in entries], f"the run {run}")


def known(run: Path, record: Mapping[str, Any]) -> tuple[UserFile, ...]:
    """The same for reading a run: errors are ignored, and another user's code is left out."""
    try:
        if record.get("own"):
            require_own(run, "")
        files = tuple(_read(run, dict(entry)) for entry in record.get("own") or [])
    except (UserError, TypeError, ValueError):
        return ()
    user_files.register(files)
    return files


def require_own(run: Path, why: str) -> None:
    """UserError for another user's folder.  why: what the caller does with it, which makes it dangerous."""
    if run.exists() and hasattr(os, "getuid") and run.stat().st_uid != os.getuid():
        raise UserError(f"{why}, and {run} belongs to another user; give --trust if you trust them")


def _read(run: Path, entry: Mapping[str, Any]) -> UserFile:
    try:
        name, digest = entry["name"], entry["sha256"]
        file = UserFile(name, entry["path"], digest, None, entry.get("about", {}))
    except KeyError as error:
        raise UserError(f"{run} must list its own files with name, path and sha256, but one lacks {error}") from error
    own, code = RunFiles(run).own_folder, name.endswith(".py")
    is_data = bool(file.about) and not code  # known only by its hash
    copy = other if (other := _beside(own, name, digest)).is_file() else own / name
    if ".." in Path(name).parts or Path(name).is_absolute() or not (copy.exists() if is_data else copy.is_file()):
        try:  # without a copy: data, or code that is read from its original path
            return file._replace(content=Path(file.path).read_bytes() if code else None)
        except OSError as error:
            why = f"{run} was made with {file.path}, but neither it nor its copy exists; restore it"
            raise UserError(why) from error
    if is_data:
        if not Path(file.path).exists():
            _require_unchanged(copy, layouts.digest(copy), file)
            user_files.copies[digest] = copy.absolute()
        return file
    content = copy.read_bytes()
    _require_unchanged(copy, hashlib.sha256(content).hexdigest(), file)
    return file._replace(content=content)


def _require_unchanged(copy: Path, digest: str, file: UserFile) -> None:
    if digest != file.sha256:
        raise UserError(
            f"{copy} is the copy of {file.path} that the run was made with, but it was changed; restore it, or start a "
            "new run"
        )
