"""Run a user's file from its stored content, with the modules that it imports from its folder.

Only the user's own code sees these modules: its imports search its folder first, as those of a script do, and nobody
else's do.  So two folders may both have a `utils.py`, and none hides an installed package from others.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedtune.core import bounded
from fedtune.core.errors import UserError

LARGEST = 2**20  # the largest code file, in bytes
_NEVER = {*sys.stdlib_module_names, "fedtune"}  # names that a user's folder cannot replace


class UserFile(NamedTuple):
    """One of the user's files, or one folder of data."""

    name: str  # scaffold.py, wards.npz, wards/; for an imported module its path in the folder
    path: str  # absolute, of the original
    sha256: str
    content: bytes | None  # None for data, which are not carried along
    about: dict[str, Any] = {}  # metadata of data, for processes that cannot read them, as JSON values


def require_file(path: Path) -> None:
    """UserError for a folder with the name of a file."""
    if path.is_dir():
        raise UserError(f"a Python file is needed, but {path} is a folder")


def collect(path: Path) -> dict[str, bytes]:
    """The content of a file and of the modules that it imports from its folder, directly or indirectly.

    UserError for code that Python cannot parse; OSError if a file cannot be read.
    """
    found = {path.name: bounded.read(path, LARGEST)}
    waiting = [path.name]
    while waiting:
        name = waiting.pop()
        for root in sorted(_roots(name, found[name], str(path.parent / name))):
            for file in _beside(path.parent, root):
                place = file.relative_to(path.parent).as_posix()
                if place not in found:
                    found[place] = bounded.read(file, LARGEST)
                    waiting.append(place)
    return found


def reached(name: str, contents: Mapping[str, bytes]) -> list[str]:
    """The names of a file and of those among `contents` that it imports, directly or indirectly; itself first."""
    found = [name]
    for at in found:
        for root in _roots(at, contents[at], at):
            inside = [n for n in contents if n == f"{root}.py" or n.startswith(f"{root}/")]
            found += [n for n in sorted(inside) if n not in found]
    return found


def module(name: str, files: Mapping[str, UserFile]) -> ModuleType:
    """The module of one of these files, run once per process for the same contents."""
    files = needed(name, files)
    key = _key(name, files)
    if key in sys.modules:
        return sys.modules[key]
    file = files[name]
    made = sys.modules[key] = ModuleType(key)  # dataclasses look it up here
    made.__file__ = file.path
    made.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(files, _package(name))}
    source = file.content or b""
    text = source.decode(errors="replace")
    linecache.cache[file.path] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        file.path,
    )  # so that tracebacks show the source
    try:
        exec(compile(source, file.path, "exec", dont_inherit=True), made.__dict__)
    except BaseException:
        del sys.modules[key]
        raise
    return made


def needed(name: str, files: Mapping[str, UserFile]) -> dict[str, UserFile]:
    """A file and those among these that it imports; itself first."""
    return {n: files[n] for n in reached(name, {n: f.content or b"" for n, f in files.items()})}


def is_run(name: str, files: Mapping[str, UserFile]) -> bool:
    """Whether this process has run a file's module."""
    return _key(name, needed(name, files)) in sys.modules


def roots(files: Mapping[str, UserFile]) -> set[str]:
    """The top-level names that these files import."""
    return {root for name, file in files.items() for root in _roots(name, file.content or b"", name)}


def _key(name: str, files: Mapping[str, UserFile]) -> str:
    """The name of a file's module in sys.modules."""
    digest = hashlib.sha256("".join(f"{f.path}{f.sha256}" for f in files.values()).encode()).hexdigest()
    return f"fedtune_own_{digest[:16]}_{name.removesuffix('.py').replace('/', '.')}"


def defined(module: ModuleType) -> list[str]:
    """The public names that a module defines itself, for error messages."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return [n for n in own if not n.startswith("_")]


def place(error: BaseException, paths: Collection[str]) -> str | None:
    """FILE:LINE of the innermost frame in one of these files, of an error or its causes; None if there is none."""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:  # an error may be its own cause
        seen.add(id(at))
        if isinstance(at, SyntaxError) and at.filename in paths:
            return f"{at.filename}:{at.lineno}"
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(at.__traceback__)]
        if lines := [f"{file}:{line}" for file, line in frames if file in paths]:
            return lines[-1]
        at = at.__cause__ or at.__context__
    return None


def _package(name: str) -> str:
    """A file's package, relative to the user's folder: `lib` for lib/blocks.py, "" for utils.py."""
    return ".".join(name.split("/")[:-1])


@lru_cache(maxsize=256)
def _roots(name: str, content: bytes, path: str) -> frozenset[str]:
    """The top-level names that a file imports, relative to the folder; UserError if Python cannot parse it."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{path}{line} is not valid Python: {said}") from error
    return frozenset(full.split(".")[0] for node in ast.walk(tree) for full in _imported(node, _package(name)))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """The names that a statement may import from the folder."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if not _reserved(alias.name))
    elif isinstance(node, ast.ImportFrom) and node.level:
        base = _absolute(node.module or "", node.level, package)
        yield from [base] if base else [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not _reserved(node.module):
        yield node.module


def _reserved(name: str) -> bool:
    """Whether a user's folder cannot replace this module."""
    return name.split(".")[0] in _NEVER


def _absolute(name: str, level: int, package: str) -> str:
    """An import's name relative to the user's folder.  level: the number of leading dots."""
    if not level:
        return name
    parts = package.split(".") if package else []
    kept = max(0, len(parts) + 1 - level)  # more dots than folders lead only up to the user's folder
    return ".".join([*parts[:kept], *([name] if name else [])])


def _beside(folder: Path, root: str) -> list[Path]:
    """The files of a module or package of this name in the folder; none if it is not there."""
    package, alone = folder / root, folder / f"{root}.py"
    if not (package / "__init__.py").is_file():
        if alone.is_file():
            return [alone]
        if not package.is_dir() or importlib.util.find_spec(root):
            return []  # a plain folder comes after what is installed
    files = (f for f in package.rglob("*.py") if f.is_file())
    return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts))


def _importer(files: Mapping[str, UserFile], package: str) -> Callable[..., Any]:
    """The `import` function for a user's file: it searches the folder's modules first, then installed packages."""

    def own_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        full = _absolute(name, level, package)
        if not level and (_reserved(full) or not _is_there(full.split(".")[0], files)):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        parts = full.split(".") if full else []
        top = inner = ModuleType("folder")
        for depth, part in enumerate(parts):
            below = _found(".".join(parts[: depth + 1]), files)
            if depth:
                setattr(inner, part, below)
            top, inner = (top if depth else below), below
        for wanted in fromlist or ():
            path = f"{full}.{wanted}".lstrip(".")
            if not hasattr(inner, wanted) and _is_there(path, files):
                setattr(inner, wanted, _found(path, files))
        return inner if fromlist else top

    return own_import


def _is_there(full: str, files: Mapping[str, UserFile]) -> bool:
    """Whether the folder has a module or package of this name."""
    at = full.replace(".", "/")
    return any(name == f"{at}.py" or name.startswith(f"{at}/") for name in files)


def _found(full: str, files: Mapping[str, UserFile]) -> ModuleType:
    """A module or package of the folder."""
    at = full.replace(".", "/")
    for name in (f"{at}/__init__.py", f"{at}.py"):
        if name in files:
            return module(name, files)
    if _is_there(full, files):
        return ModuleType(full)  # a folder of modules
    raise ModuleNotFoundError(f"No module named {full!r}", name=full)
