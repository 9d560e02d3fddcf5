"""A user's own files, given in place of a built-in name: an algorithm, a model, a metric, data.

A REFERENCE is what users type: `FILE.py`, `FILE.py:NAME`, `FILE.py:NAME(depth=2)`, `FILE.npz`, `FILE.csv(y='sick')` or
`FOLDER/`.  Its canonical name, used in experiments, tables and folders, is the same without the path:
`scaffold.py:Variant`, `wards/`.  A canonical name always has a dot or a slash, so it never equals a built-in name.

Code is taken with its content and that of the modules that it imports from its folder.  A study keeps copies of them
with their hashes.  A worker, another node or a later process executes these and reads nothing from disk: anew for each
trial, so that nothing in a module outlives one.  Data are known by their hash only.  An experiment carries its files
along; if two files have the same name, the one registered last counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedtune.core.errors import UserError, unknown
from fedtune.user_code import user_imports
from fedtune.user_code.references import CODE, PICKLED, options_text, parsed, whole_path, with_slash
from fedtune.user_code.references import call_options as call_options
from fedtune.user_code.references import called as called
from fedtune.user_code.references import is_reference as is_reference
from fedtune.user_code.references import plain_name as plain_name
from fedtune.user_code.references import split as split
from fedtune.user_code.user_errors import PATHS, reported
from fedtune.user_code.user_imports import Execution as Execution
from fedtune.user_code.user_imports import UserFile as UserFile

_files: dict[str, UserFile] = {}  # by name
_code: dict[str, UserFile] = {}  # by path: of two folders, each may have its utils.py
copies: dict[str, Path] = {}  # of data, in studies' folders, for when the original is gone; by hash
_named: set[str] = set()  # the paths of files that a reference named, and not only an import


def take(text: str) -> tuple[str, tuple[UserFile, ...]]:
    """The canonical name of a reference, and the files that it needs, which are registered in this process.

    UserError if there is no such file, or it cannot be read.  Its code is not run.
    """
    given = parsed(text := with_slash(text))
    if given.path.endswith(PICKLED) and given.path in _files:
        return given.path, (_files[given.path],)
    path = whole_path(given.path)
    ending = (f":{given.member}" if given.member else "") + options_text(text, given.options)
    if path.suffix in CODE and not path.is_dir():
        files = _with_imports(path)
    elif given.member:
        raise UserError(f"only a Python file can be followed by :NAME, but got {text!r}; give {given.path}")
    else:
        files = (of_data(path),)
    register(files)
    _named.add(files[0].path)
    return files[0].name + ending, files


def take_each(text: str, known: Collection[str] = ()) -> tuple[str, tuple[UserFile, ...]]:
    """The canonical names of a comma-separated list of names and references, and the files that they need.

    known: existing names.
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
    """Whether a text is a single reference whose path contains commas."""
    try:
        return is_reference(text, known) and whole_path(parsed(text).path).exists()
    except UserError:  # several
        return False


def reference(names: str) -> str:
    """Turn a comma-separated list of canonical names back into references that can be typed."""
    found = []
    for name in each(names):
        whole = (parsed(name).path, name, name.rpartition(":")[0])  # of code, data, weights
        at = next((end for end in whole if end in _files), None)
        found.append((_files[at].path or at) + name.removeprefix(at) if at else name)
    return ",".join(found)


def each(names: str) -> list[str]:
    """Split a list of names at commas, except at commas inside the name of a registered file."""
    commas = (file for file in _files if "," in file)
    return [names] if any(names == file or names.startswith(f"{file}:") for file in commas) else split(names)


def of_data(path: str | Path) -> UserFile:
    """A file or folder of data; UserError unless it can be read or was registered before it vanished."""
    from fedtune.user_code import layouts

    path = whole_path(path)
    try:
        return UserFile(path.name + "/" * path.is_dir(), str(path), layouts.digest(path), None)
    except OSError as error:
        return _registered(path, error)


def of_content(path: str | Path) -> UserFile:
    """A file that is carried along whole, for example weights; UserError as in `of_data`."""
    path = whole_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        return _registered(path, error)
    return UserFile(path.name, str(path), hashlib.sha256(content).hexdigest(), content)


def of_class(cls: type, pickled: bytes) -> str:
    """A name for a class from a notebook or script; it is registered and carried along as a pickle."""
    name = f"{cls.__name__}{PICKLED}"
    register([UserFile(name, "", hashlib.sha256(pickled).hexdigest(), pickled)])
    user_imports.current().unpickled[pickled] = cls
    return name


def unchanged(files: Iterable[UserFile], whose: str) -> tuple[UserFile, ...]:
    """Check that the files something was made from have not changed, and register them.

    whose: what was made from them.  UserError for a changed file and for missing data; code is carried along.
    """
    files = tuple(files)
    for file in files:
        there = bool(file.path) and Path(file.path).exists()
        if not there and file.content is None and not _copy(file):
            raise UserError(f"{whose} needs {file.path}, which no longer exists; restore it")
        if there and of_data(file.path).sha256 != file.sha256:
            raise UserError(
                f"{whose} was made with another version of {file.path}, which has changed since; restore it"
                + ("" if file.content is None else ", or rename the new file to use the stored copy")
            )
    register(files)
    return files


def register(files: Iterable[UserFile]) -> None:
    """Register files that came with an experiment in this process; nothing is read from disk.

    Metadata known for the same content is kept if the new file brings none.
    """
    for file in files:
        before = _files.get(file.name)
        if before and before.sha256 == file.sha256 and not file.about:
            file = file._replace(about=before.about)
        _files[file.name] = file
        if file.content is not None and file.path:
            _code[file.path] = file
            PATHS.add(file.path)


def merged(*groups: Iterable[UserFile]) -> tuple[UserFile, ...]:
    """The files of one study, each once; UserError for two with the same name and different contents.

    Modules that files only import from their folders may have one name: each file gets its own.
    """
    found: dict[str, UserFile] = {}
    first: dict[str, UserFile] = {}
    for file in (f for group in groups for f in group):
        other = first.setdefault(file.name, file)
        named = bool({other.path, file.path} & _named)
        if (named or other.path == file.path) and _hashes(other) != _hashes(file):
            raise UserError(f"files of one study need different names: {other.path} and {file.path} differ; rename one")
        found.setdefault(file.name if named else file.path, file)
    return tuple(found.values())


def _hashes(file: UserFile) -> dict[str, str]:
    """The hashes of a file and of what it imports from its folder."""
    return {name: f.sha256 for name, f in _closure(file).items()}


def is_own(name: str) -> bool:
    """Whether a name is the canonical name of a registered file."""
    return is_reference(name) and parsed(name).path in _files


def known(name: str) -> UserFile:
    """The file of a canonical name; UserError if this process does not know it."""
    if (path := name if name in _files else parsed(name).path) not in _files:
        raise UserError(f"{path!r} is not one of the files that came with this experiment")
    return _files[path]


def load(name: str, kind: str) -> Any:
    """The object of a canonical name, or the module if it names none, as the current execution has it.

    kind: what it should be, for error messages.  UserCodeError for whatever the file raises.
    """
    given = parsed(name)
    file = known(given.path)
    if file.content is None:
        raise UserError(f"this {kind} needs a Python file, but got {name!r}")
    with reported(f"the {kind} cannot be loaded", file.path):
        if file.name.endswith(PICKLED):
            return user_imports.current().of_pickle(file.content)
        module = user_imports.current().module(file.name, _closure(file))
    if not given.member:
        return module
    if not hasattr(module, given.member):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
        raise unknown(f"name in {file.path}:", given.member, [n for n in own if not n.startswith("_")])
    return getattr(module, given.member)


def version(name: str) -> str:
    """What is equal for a canonical name as long as its file and what it imports are; "" for what is no file's."""
    if not is_own(name):  # packages stay as they are while a process runs
        return ""
    files = _closure(known(name)).values()
    return hashlib.sha256("".join(f"{f.path}{f.sha256}" for f in files).encode()).hexdigest()


def calling(name: str, kind: str) -> AbstractContextManager[None]:
    """Within this context, errors of the user's object of this name become a one-line UserError with their line."""
    return reported(f"the {kind} {name} failed", known(name).path)


def path_of(name: str) -> Path:
    """The path of a file or folder, or of a copy; UserError if it is unknown here or no longer exists."""
    file = known(name)
    if Path(file.path).exists():
        return Path(file.path)
    if copy := _copy(file):
        return copy
    raise UserError(f"{name} was read from {file.path}, which no longer exists; restore it")


def _copy(file: UserFile) -> Path | None:
    copy = copies.get(file.sha256)
    return copy if copy and copy.exists() else None


def _with_imports(path: Path) -> tuple[UserFile, ...]:
    """A code file and the modules that it imports from its folder."""
    folder = path.parent
    try:
        found = user_imports.reached(
            folder, path.name, lambda name: (folder / name).read_bytes(), lambda root: user_imports.beside(folder, root)
        )
    except OSError as error:
        return tuple(_closure(_registered(path, error)).values())
    return tuple(UserFile(n, str(folder / n), hashlib.sha256(c).hexdigest(), c) for n, c in found.items())


def _closure(file: UserFile) -> dict[str, UserFile]:
    """A file and what it imports from its folder, by their paths in the folder; itself first."""
    if file.content is None or not file.path or not file.name.endswith(CODE):
        return {file.name: file}
    inside = file.path.removesuffix(file.name)
    beside = {path.removeprefix(inside): other for path, other in _code.items() if path.startswith(inside)}
    beside[file.name] = file
    names = user_imports.reached(
        Path(inside),
        file.name,
        lambda name: beside[name].content or b"",
        lambda root: sorted(n for n in beside if n == f"{root}.py" or n.startswith(f"{root}/")),
    )
    return {n: beside[n] for n in names}


def _registered(path: Path, error: OSError) -> UserFile:
    """The registered file in place of one that is no longer on disk."""
    for file in _files.values():
        if file.path == str(path) and isinstance(error, FileNotFoundError):
            return file
    advice = "give a file that exists" if isinstance(error, FileNotFoundError) else "give another"
    raise UserError(f"{error.filename or path} cannot be read: {error.strerror or error}; {advice}") from None
