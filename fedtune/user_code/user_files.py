"""A user's own files, given where a name is: an algorithm, a model, a metric, data.

A REFERENCE is what is typed: `FILE.py`, `FILE.py:NAME`, `FILE.py:NAME(depth=2)`, `FILE.npz` or `FOLDER/`.  Its
canonical name, which experiments, tables and folders hold, is the same without the path: `scaffold.py:Variant`,
`wards/`.  Every one has a dot or a slash, so it is never a built-in's.

Code is known by its content, together with the modules that it imports from its own folder: a worker, another node or a
later process runs it from there and reads nothing from disk.  Data are known by their hash only.  An experiment brings
its files along; of two files of one name the one that was registered last counts.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtune.core import bounded, zipped
from fedtune.core.errors import UserError, unknown
from fedtune.user_code import content_hashes, first_import, isolation, user_imports
from fedtune.user_code.references import CODE, PICKLED, options_text, parsed, whole_path
from fedtune.user_code.references import call_options as call_options
from fedtune.user_code.references import is_reference as is_reference
from fedtune.user_code.references import plain_name as plain_name
from fedtune.user_code.references import split as split
from fedtune.user_code.user_errors import PATHS, reported
from fedtune.user_code.user_imports import UserFile as UserFile

LIMIT = 10_000_000  # bytes of code that are carried along
SMALL = 2**26  # bytes of a file that are read in no time
LARGEST = 2**32  # bytes of a file that is carried along whole

_files: dict[str, UserFile] = {}
_taken: set[str] = set()  # hashes of code that this process was given, and no other looked at
_classes: dict[bytes, Any] = {}  # by their pickles


def take(text: str) -> tuple[str, tuple[UserFile, ...]]:
    """The canonical name of a reference, and the files that it needs, which this process knows from now on.

    UserError where there is no such file, or none that can be read.  Its code is not run.
    """
    given = parsed(text)
    if given.path.endswith(PICKLED) and given.path in _files:
        return given.path, (_files[given.path],)
    path = whole_path(given.path)
    ending = f":{given.member}{options_text(text, given.options)}" if given.member else ""
    if path.suffix in CODE and not path.is_dir():
        files = _code(path)
    elif given.member:
        raise UserError(f"only a Python file has names in it, but got {text!r}; give {given.path}")
    else:
        files = (_data(path),)
    register(files)
    return files[0].name + ending, files


def take_each(text: str, known: Collection[str] = ()) -> tuple[str, tuple[UserFile, ...]]:
    """Names and references with commas between them, by their canonical names; and the files that they need.

    known: the names there are.
    """
    names: list[str] = []
    files: tuple[UserFile, ...] = ()
    for name in [text] if "," in text and _is_one(text, known) else split(text):
        if is_reference(name, known):
            name, needed = take(name)
            files = merged(files, needed)
        names.append(name)
    return ",".join(names), files


def _is_one(text: str, known: Collection[str]) -> bool:
    """Whether it is one reference, whose path has commas."""
    try:
        return is_reference(text, known) and whole_path(parsed(text).path).exists()
    except UserError:  # several
        return False


def reference(names: str) -> str:
    """Canonical names of this process's files, and other names, with commas between them, as they could be typed."""
    return moved(names, lambda file: file.path or file.name)


def moved(names: str, place: Callable[[UserFile], str]) -> str:
    """The same, with each file where `place` says that it will lie."""
    found = []
    for name in each(names):
        at = _file_of(name)
        found.append(place(_files[at]) + name.removeprefix(at) if at else name)
    return ",".join(found)


def each(names: str) -> list[str]:
    """The names between commas; those of this process's files may have commas in them."""
    commas = (file for file in _files if "," in file)
    return [names] if any(names == file or names.startswith(f"{file}:") for file in commas) else split(names)


def _file_of(name: str) -> str | None:
    """The file of a canonical name: of code, of data, of a part of weights; None if this process knows none."""
    return next((end for end in (parsed(name).path, name, name.rpartition(":")[0]) if end in _files), None)


def of_data(path: str | Path) -> UserFile:
    """A file or folder of data; UserError unless it can be read, or was registered before it vanished."""
    path = whole_path(path)
    name = path.name + ("/" if path.is_dir() else "")
    try:
        return UserFile(name, str(path), content_hashes.digest(path), None)
    except OSError as error:
        return _registered(path, error)


def of_content(path: str | Path) -> UserFile:
    """A file that is carried along whole, weights for instance; UserError as for `of_data`."""
    path = whole_path(path)
    try:
        content = bounded.read(path, LARGEST)
    except OSError as error:
        return _registered(path, error)
    return UserFile(path.name, str(path), hashlib.sha256(content).hexdigest(), content)


def of_class(cls: type, pickled: bytes) -> str:
    """A name for a class of a notebook or a script, which this process knows from now on: it is carried as a pickle."""
    name = f"{cls.__name__}{PICKLED}"
    register([UserFile(name, "", hashlib.sha256(pickled).hexdigest(), pickled)])
    _classes[pickled] = cls
    return name


def unchanged(files: Iterable[UserFile], whose: str) -> tuple[UserFile, ...]:
    """The files that something was made of, which this process knows from now on.

    whose: what was made of them.  UserError for one that is another now, and for data that are gone: code is carried.
    """
    files = tuple(files)
    for file in files:
        there = bool(file.path) and Path(file.path).exists()
        if not there and file.content is None and not content_hashes.find(file.sha256):
            raise UserError(f"{whose} needs {file.path}, which is gone; restore it")
        if there and of_data(file.path).sha256 != file.sha256:
            raise UserError(
                f"{whose} was made with another {file.path}: it has changed since; restore it"
                + ("" if file.content is None else ", or rename the new file to use the stored copy")
            )
    register(files)
    _taken.update(file.sha256 for file in files)
    return files


def register(files: Iterable[UserFile]) -> None:
    """Make files known to this process, from what came with an experiment; nothing is read from disk.

    What was known of the same content is still known, where the file brings nothing of its own.
    """
    for file in files:
        before = _files.get(file.name)
        if before and before.sha256 == file.sha256 and not file.about:
            file = file._replace(about=before.about)
        _files[file.name] = file
        if file.content is not None:
            PATHS.add(file.path)


def merged(*groups: Iterable[UserFile]) -> tuple[UserFile, ...]:
    """The files of one experiment, each once; UserError for two of one name with different contents."""
    found: dict[str, UserFile] = {}
    for file in (f for group in groups for f in group):
        other = found.setdefault(file.name, file)
        if other.sha256 != file.sha256:
            raise UserError(
                f"two files of one experiment must have two names, but {other.path} and {file.path} differ; rename one"
            )
    return tuple(found.values())


def is_own(name: str) -> bool:
    """Whether it is the canonical name of a file that this process knows."""
    return is_reference(name) and parsed(name).path in _files


def load(name: str, kind: str) -> Any:
    """The object of a canonical name, or the module where it names none.

    kind: what it is to be, for the complaint.  UserError with the line in the user's file for whatever goes wrong.
    """
    given = parsed(name)
    file = _known(given.path)
    if file.content is None:
        if file.name.endswith(".py/"):
            user_imports.require_file(Path(file.path))
        raise UserError(f"a file of code is needed for this {kind}, but got {name!r}")
    with reported(f"the {kind} does not load", file.path):
        if file.name.endswith(PICKLED):
            if file.content not in _classes:
                _classes[file.content] = pickle.loads(file.content)
            return _classes[file.content]
        module = _module(file)
    if not given.member:
        return module
    if not hasattr(module, given.member):
        raise unknown(f"name in {file.path}:", given.member, user_imports.defined(module))
    return getattr(module, given.member)


def _module(file: UserFile) -> ModuleType:
    """The module of a file, run once in this process; first in a child if this process took it from the disk."""
    files = _closure(file)
    if user_imports.is_run(file.name, files):
        return user_imports.module(file.name, files)
    if file.sha256 in _taken:
        first_import.tried(file.name, files)
    with isolation.apart(file.path):
        return user_imports.module(file.name, files)


def calling(name: str, kind: str) -> AbstractContextManager[None]:
    """While the user's object of this name is called: what it raises is a UserError in one line, with their line."""
    return reported(f"the {kind} {name} failed", _known(parsed(name).path).path)


def about(name: str) -> dict[str, Any]:
    """What is known of a file of data without reading it."""
    return _known(parsed(name).path).about


def content_of(name: str) -> bytes:
    """What a file holds that is carried along; UserError if this process does not know it."""
    return _known(name).content or b""


def path_of(name: str) -> Path:
    """Where a file or folder lies, or a copy of it; UserError if this process does not know it, or it has vanished."""
    file = _known(parsed(name).path)
    if Path(file.path).exists():
        return Path(file.path)
    if copy := content_hashes.find(file.sha256):
        return copy
    raise UserError(f"{name} was read from {file.path}, which is gone; restore it")


def _data(path: Path) -> UserFile:
    """A folder, or a file of arrays, which is looked over before it is read whole."""
    try:
        if not path.is_dir():
            zipped.require_arrays(path)
    except OSError as error:
        return _registered(path, error)
    except UserError:
        if path.stat().st_size > SMALL:
            raise  # what is read in no time is told by whoever wants to use it
    return of_data(path)


def _code(path: Path) -> tuple[UserFile, ...]:
    """A file of code, and the modules that it imports from its folder."""
    try:
        found = user_imports.collect(path)
    except OSError as error:
        kept = _registered(path, error)
        return tuple(_closure(kept).values())
    files = tuple(UserFile(n, str(path.parent / n), hashlib.sha256(c).hexdigest(), c) for n, c in found.items())
    if (size := sum(len(content) for content in found.values())) > LIMIT:
        raise UserError(
            f"code and what it imports from its folder must be at most {LIMIT:,} bytes, but {path} has {size:,}"
        )
    _taken.add(files[0].sha256)
    return files


def _closure(file: UserFile) -> dict[str, UserFile]:
    """A registered file and those of its folder that it imports, itself first."""
    folder = Path(file.path).parent
    beside = {n: f for n, f in _files.items() if f.content is not None and Path(f.path) == folder / n}
    names = user_imports.reached(file.name, {n: f.content or b"" for n, f in (beside | {file.name: file}).items()})
    return {n: (beside | {file.name: file})[n] for n in names}


def _known(name: str) -> UserFile:
    if name not in _files:
        raise UserError(f"{name!r} is not among the files that came with this experiment")
    return _files[name]


def _registered(path: Path, error: OSError) -> UserFile:
    """The file as it was registered, where it is no longer on disk."""
    for file in _files.values():
        if file.path == str(path) and isinstance(error, FileNotFoundError):
            return file
    advice = "give a file that is there" if isinstance(error, FileNotFoundError) else "give another"
    raise UserError(f"{error.filename or path} cannot be read: {error.strerror or error}; {advice}") from None
