"""Running a user's file from its content, with the modules of its folder that it imports.

Such a module is seen by the user's own code alone: its imports look into its folder first, as those of a script do, and
nobody else's do.  Two folders may therefore both have a `utils.py`, and none hides an installed package from others.
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
from fedtune.user_code import packages

LARGEST = 2**20  # bytes of a file of code
_NEVER = {*sys.stdlib_module_names, "fedtune"}  # names that no folder of a user's replaces


class UserFile(NamedTuple):
    """One file, or one folder of data."""

    name: str  # scaffold.py, wards.npz, wards/; of a module that one imports its place in that one's folder
    path: str  # absolute, where it was read
    sha256: str
    content: bytes | None  # of code
    about: dict[str, Any] = {}  # of data: what is to be known of them where they are not, as JSON values


def require_file(path: Path) -> None:
    """UserError for a folder that is called like a file."""
    if path.is_dir():
        raise UserError(f"a Python file is needed, but {path} is a folder")


def collect(path: Path) -> dict[str, bytes]:
    """A file's content and that of the modules of its folder that it imports, directly or through one of them.

    UserError for code that Python cannot parse; OSError for what cannot be read.
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
    """The names among these files that one of them imports, directly or through others: itself first."""
    found = [name]
    for at in found:
        for root in _roots(at, contents[at], at):
            inside = [n for n in contents if n == f"{root}.py" or n.startswith(f"{root}/")]
            found += [n for n in sorted(inside) if n not in found]
    return found


def module(name: str, files: Mapping[str, UserFile]) -> ModuleType:
    """The module of a file among these, run once in a process for the same contents."""
    files = needed(name, files)
    key = _key(name, files)
    if key in sys.modules:
        return sys.modules[key]
    file = files[name]
    made = sys.modules[key] = ModuleType(key)  # where dataclasses look for it
    made.__file__ = file.path
    made.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(files, _package(name))}
    source = file.content or b""
    text = source.decode(errors="replace")
    linecache.cache[file.path] = (len(text), None, text.splitlines(keepends=True), file.path)  # for stacks anywhere
    try:
        exec(compile(source, file.path, "exec", dont_inherit=True), made.__dict__)
    except BaseException:
        del sys.modules[key]
        raise
    return made


def needed(name: str, files: Mapping[str, UserFile]) -> dict[str, UserFile]:
    """A file and those among these that it imports: itself first."""
    return {n: files[n] for n in reached(name, {n: f.content or b"" for n, f in files.items()})}


def is_run(name: str, files: Mapping[str, UserFile]) -> bool:
    """Whether the module of a file was run in this process."""
    return _key(name, needed(name, files)) in sys.modules


def roots(files: Mapping[str, UserFile]) -> set[str]:
    """The first parts of what these files import."""
    return {root for name, file in files.items() for root in _roots(name, file.content or b"", name)}


def _key(name: str, files: Mapping[str, UserFile]) -> str:
    """What Python knows the module of a file by."""
    digest = hashlib.sha256("".join(f"{f.path}{f.sha256}" for f in files.values()).encode()).hexdigest()
    return f"fedtune_own_{digest[:16]}_{name.removesuffix('.py').replace('/', '.')}"


def defined(module: ModuleType) -> list[str]:
    """The names that a module defines itself, for a complaint."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return [n for n in own if not n.startswith("_")]


def place(error: BaseException, paths: Collection[str]) -> str | None:
    """FILE:LINE of the innermost frame in one of these files, of an error or of those that led to it; None without."""
    at: BaseException | None = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:  # whoever raises may say that an error is its own cause
        seen.add(id(at))
        if isinstance(at, SyntaxError) and at.filename in paths:
            return f"{at.filename}:{at.lineno}"
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(at.__traceback__)]
        if lines := [f"{file}:{line}" for file, line in frames if file in paths]:
            return lines[-1]
        at = at.__cause__ or at.__context__
    return None


def _package(name: str) -> str:
    """The package of a file, as seen from its folder: `lib` of lib/blocks.py, nothing of utils.py."""
    return ".".join(name.split("/")[:-1])


@lru_cache(maxsize=256)
def _roots(name: str, content: bytes, path: str) -> frozenset[str]:
    """The first parts of what a file imports, as seen from the folder; UserError if Python cannot parse it."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{path}{line} is not Python: {said}") from error
    return frozenset(full.split(".")[0] for node in ast.walk(tree) for full in _imported(node, _package(name)))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """What a statement may import from the folder, as seen from there."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if not _reserved(alias.name))
    elif isinstance(node, ast.ImportFrom) and node.level:
        base = _absolute(node.module or "", node.level, package)
        yield from [base] if base else [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not _reserved(node.module):
        yield node.module


def _reserved(name: str) -> bool:
    """Whether it is a module that no folder of a user's replaces."""
    return name.split(".")[0] in _NEVER


def _absolute(name: str, level: int, package: str) -> str:
    """A name as seen from the folder.  level: how many dots stand before it."""
    if not level:
        return name
    parts = package.split(".") if package else []
    kept = max(0, len(parts) + 1 - level)  # more dots than folders lead no further than to the user's folder
    return ".".join([*parts[:kept], *([name] if name else [])])


def _beside(folder: Path, root: str) -> list[Path]:
    """The files of a module or package of this name in the folder; none if it is not there."""
    package, alone = folder / root, folder / f"{root}.py"
    if root in packages.NAMES and package == packages.folder(root):
        return []  # a file in a clone means the packages beside it
    if not (package / "__init__.py").is_file():
        if alone.is_file():
            return [alone]
        if not package.is_dir() or importlib.util.find_spec(root):
            return []  # a plain folder comes after what is installed
    files = (f for f in package.rglob("*.py") if f.is_file())
    return sorted(f for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts))


def _importer(files: Mapping[str, UserFile], package: str) -> Callable[..., Any]:
    """What `import` does in a user's file: its folder's modules first, then what is installed."""

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
    """Whether there is a module or package of this name in the folder."""
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
