"""A user's own files, given where a name is: an algorithm, a model, a metric, data.

A REFERENCE is what is typed: `FILE.py`, `FILE.py:NAME`, `FILE.py:NAME(depth=2)`, `FILE.npz` or `FOLDER/`.  Its
canonical name, which experiments, tables and folders hold, is the same without the path: `scaffold.py:Variant`,
`wards/`.  Every one has a dot or a slash, so it is never a built-in's.

Code is known by its content, together with the modules that it imports from its own folder: a worker, another node or a
later process runs it from there and reads nothing from disk.  Data are known by their hash only.  An experiment brings
its files along; of two files of one name the one that was registered last counts.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fedtune.core import own_imports
from fedtune.core.errors import UserError, unknown
from fedtune.core.own_imports import OwnFile as OwnFile

LIMIT = 10_000_000  # bytes of code that are carried along
CODE, DATA = (".py",), (".npz",)


class _Reference(NamedTuple):
    path: str
    member: str  # what comes after the colon, or nothing
    options: str  # its `(depth=2)`, or nothing


_files: dict[str, OwnFile] = {}


def is_reference(text: str, known: Collection[str] = ()) -> bool:
    """Whether it is a file or folder and no name.  known: the names there are, which come first."""
    if text in known:
        return False
    ends = "|".join(re.escape(suffix) for suffix in CODE + DATA)
    return bool(re.fullmatch(rf".*({ends})(:.*)?", text, re.DOTALL)) or "/" in text or Path(text).is_dir()


def take(text: str) -> tuple[str, tuple[OwnFile, ...]]:
    """The canonical name of a reference, and the files that it needs, which this process knows from now on.

    UserError where there is no such file, or none that can be read.  Its code is not run.
    """
    given = _parsed(text)
    path = _absolute(given.path)
    ending = f":{given.member}{_options_text(text, given.options)}" if given.member else ""
    if path.suffix in CODE:
        files = _code(path)
    elif given.member:
        raise UserError(f"only a Python file has names in it, but got {text!r}; give {given.path}")
    else:
        files = (of_data(path),)
    register(files)
    return files[0].name + ending, files


def of_data(path: str | Path) -> OwnFile:
    """A file or folder of data; UserError unless it can be read, or was registered before it vanished."""
    path = _absolute(path)
    name = path.name + ("/" if path.is_dir() else "")
    try:
        inside = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        listing = tuple((str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in inside)
        return OwnFile(name, str(path), _digest_of(str(path), listing), None)
    except OSError as error:
        return _registered(path, error)


def register(files: Iterable[OwnFile]) -> None:
    """Make files known to this process, from what came with an experiment; nothing is read from disk."""
    for file in files:
        _files[file.name] = file


def merged(*groups: Iterable[OwnFile]) -> tuple[OwnFile, ...]:
    """The files of one experiment, each once; UserError for two of one name with different contents."""
    found: dict[str, OwnFile] = {}
    for file in (f for group in groups for f in group):
        other = found.setdefault(file.name, file)
        if other.sha256 != file.sha256:
            raise UserError(
                f"two files of one experiment must have two names, but {other.path} and {file.path} differ; rename one"
            )
    return tuple(found.values())


def is_own(name: str) -> bool:
    """Whether it is the canonical name of a file that this process knows."""
    return is_reference(name) and _parsed(name).path in _files


def load(name: str, kind: str) -> Any:
    """The object of a canonical name, or the module where it names none.

    kind: what it is to be, for the complaint.  UserError with the line in the user's file for whatever goes wrong.
    """
    given = _parsed(name)
    file = _known(given.path)
    if file.content is None:
        raise UserError(f"a file of code is needed for this {kind}, but got {name!r}")
    try:
        module = own_imports.module(file.name, _closure(file))
    except (Exception, SystemExit) as error:  # whatever their code raises
        raise UserError(f"the {kind} does not load: {describe(error, file.path)}") from error
    if not given.member:
        return module
    if not hasattr(module, given.member):
        raise unknown(f"name in {file.path}:", given.member, own_imports.defined(module))
    return getattr(module, given.member)


@contextmanager
def calling(name: str, kind: str) -> Iterator[None]:
    """While the user's object of this name is called: what it raises is a UserError in one line, with their line."""
    try:
        yield
    except Exception as error:  # whatever their code raises
        raise UserError(f"the {kind} {name} failed: {describe(error, _known(_parsed(name).path).path)}") from error


def call_options(name: str) -> dict[str, Any]:
    """The options of `FILE.py:NAME(a=1, b="x")`; UserError unless all are literals by name."""
    text = _parsed(name).options
    return _literals(name, text) if text else {}


def about(name: str) -> dict[str, Any]:
    """What is known of a file of data without reading it."""
    return _known(_parsed(name).path).about


def content_of(name: str) -> bytes:
    """What a file holds that came by value, code or weights; UserError if this process does not know it."""
    return _known(name).content or b""


def path_of(name: str) -> Path:
    """Where a file or folder lies; UserError if this process does not know it, or it has vanished."""
    path = Path(_known(_parsed(name).path).path)
    if not path.exists():
        raise UserError(f"{name} was read from {path}, which is gone; bring it back")
    return path


def place(error: BaseException) -> str | None:
    """FILE:LINE of an error in the user's own code, the innermost one; None if no line of theirs is in its stack."""
    code = {file.path for file in _files.values() if file.content is not None}
    return own_imports.place(error, code)


def describe(error: BaseException, otherwise: str = "") -> str:
    """An error of the user's own code in a line: place, kind and message.  otherwise: the place if none is known."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    if isinstance(error, SystemExit):
        text = "it ends the program"
    if isinstance(error, RecursionError):
        text = "it calls itself without end"
    where = place(error) or otherwise
    kind = "" if isinstance(error, UserError) else type(error).__name__
    return ": ".join(filter(None, [where, kind, " ".join(str(text).split())]))


def plain_name(name: str) -> str:
    """A canonical name as part of a folder's or file's name."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-") if is_reference(name) else name


def split(text: str) -> list[str]:
    """Names and references between commas, but for commas inside brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]


def _absolute(path: str | Path) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))


def _parsed(text: str) -> _Reference:
    """A reference's parts; UserError if what comes after the colon is no name."""
    found = re.fullmatch(r"(.*\.py)(?::(.*))?", text, re.DOTALL)
    if not found:
        return _Reference(text, "", "")
    path, ending = found.groups()
    if ending is None:
        return _Reference(path, "", "")
    named = re.fullmatch(r"([^\W\d]\w*)(\(.*\))?", ending, re.DOTALL)
    if not named:
        raise UserError(f"after FILE.py: comes a name of that file, or NAME(option=value), but got {text!r}")
    return _Reference(path, named[1], named[2] or "")


def _literals(text: str, options: str) -> dict[str, Any]:
    """The values of `(a=1, b="x")`."""
    try:
        call = ast.parse(f"f{options}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise UserError(
            f"options after a name must be literals by name, as in net.py:net(depth=2, kind='gru'), but got {text!r}"
        ) from None


def _options_text(text: str, options: str) -> str:
    """Options as canonical names have them."""
    values = _literals(text, options) if options else {}
    return f"({','.join(f'{n}={v!r}' for n, v in values.items())})" if values else ""


def _code(path: Path) -> tuple[OwnFile, ...]:
    """A file of code, and the modules that it imports from its folder."""
    try:
        own_imports.require_file(path)
        found = own_imports.collect(path)
    except OSError as error:
        kept = _registered(path, error)
        return tuple(_closure(kept).values())
    files = tuple(OwnFile(n, str(path.parent / n), hashlib.sha256(c).hexdigest(), c) for n, c in found.items())
    if (size := sum(len(content) for content in found.values())) > LIMIT:
        raise UserError(
            f"code and what it imports from its folder must be at most {LIMIT:,} bytes, but {path} has {size:,}"
        )
    return files


def _closure(file: OwnFile) -> dict[str, OwnFile]:
    """A registered file and those of its folder that it imports, itself first."""
    folder = Path(file.path).parent
    beside = {n: f for n, f in _files.items() if f.content is not None and Path(f.path) == folder / n}
    names = own_imports.reached(file.name, {n: f.content or b"" for n, f in (beside | {file.name: file}).items()})
    return {n: (beside | {file.name: file})[n] for n in names}


def _known(name: str) -> OwnFile:
    if name not in _files:
        raise UserError(f"{name!r} is not among the files that came with this experiment")
    return _files[name]


def _registered(path: Path, error: OSError) -> OwnFile:
    """The file as it was registered, where it is no longer on disk."""
    for file in _files.values():
        if file.path == str(path) and isinstance(error, FileNotFoundError):
            return file
    raise UserError(f"{path} cannot be read: {error.strerror or error}; give a file that is there") from None


@lru_cache(maxsize=64)
def _digest_of(path: str, listing: tuple[tuple[str, int, int], ...]) -> str:
    """The hash of a file, or of a folder's files with their names.  listing: names, sizes and times."""
    whole = hashlib.sha256()
    for name, *_ in listing:
        with open(name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if len(listing) == 1 and name == path:
            return digest.hexdigest()
        whole.update(f"{name.removeprefix(path)}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()
