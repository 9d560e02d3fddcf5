"""Find where something is defined in the files of an algorithm's author."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from fedtune.core.about import FOLDER
from fedtune.user_code import user_errors


def files_of(cls: type) -> dict[str, str]:
    """The files that define a class and its bases outside fedtune, each with its module's name."""
    found: dict[str, str] = {}
    for owner in own_classes(cls):
        module = sys.modules.get(owner.__module__)
        # without the methods that `dataclass` adds
        written = [f for f in vars(owner).values() if isinstance(f, FunctionType)]
        codes = [f.__code__.co_filename for f in written if f.__globals__.get("__name__") == owner.__module__]
        for file in (*codes, getattr(module, "__file__", None)):
            if file and not file.startswith("<"):
                found.setdefault(file, owner.__module__)
    return found


def own_classes(cls: type) -> list[type]:
    """A class and its bases, without those defined by fedtune."""
    return [c for c in cls.__mro__ if c.__module__.split(".")[0] not in ("fedtune", "builtins", "torch")]


def of_error(error: BaseException, cls: type) -> str:
    """The last line of the author's files in an error's traceback, or that its message begins with; else ""."""
    own, package = files_of(cls), str(FOLDER)
    folders = {str(Path(file).parent) for file in own}
    lines = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f.filename in own or (str(Path(f.filename).parent) in folders and not f.filename.startswith(package))
    ]
    if lines:
        return place(lines[-1].filename, lines[-1].lineno or 0)
    said = re.match(r"(\S+\.py:\d+): ", str(error))
    return Path(user_errors.place(error) or (said[1] if said else "")).name  # for example the file of a model


def of_hook(cls: type, *names: str) -> str:
    """The line of the first of these methods that a class defines itself; else that of the class."""
    for name in names:
        for owner in own_classes(cls):
            if isinstance(hook := vars(owner).get(name), FunctionType):
                return of_function(hook)
    return of_class(cls)


def of_function(function: Callable[..., Any]) -> str:
    """The line of a function's `def`."""
    code = getattr(function, "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code else ""


def of_class(cls: type) -> str:
    """The line of a class statement."""
    return next((place(file, node.lineno) for file, node in _statements(cls) if node.name == cls.__name__), "")


def of_name(cls: type, name: str) -> str:
    """The line where a field or attribute of the class, or a name of its module, is first assigned."""
    bodies = [(file, node.body) for file, node in _statements(cls)]
    bodies += [(file, tree_of(file).body) for file in files_of(cls)]
    return next((place(file, line) for file, body in bodies if (line := _given(body, name))), "") or of_class(cls)


def _statements(cls: type) -> Iterator[tuple[str, ast.ClassDef]]:
    """The class statements of a class and its bases, each with its file."""
    for file in files_of(cls):
        nodes = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)]
        yield from ((file, node) for owner in own_classes(cls) for node in nodes if node.name == owner.__name__)


def of_word(cls: type, pattern: str) -> str:
    """The first line of the author's files that matches this regular expression outside comments; "" if none does."""
    for file in files_of(cls):
        for number, line in enumerate(linecache.getlines(file), 1):
            if re.search(pattern, line.split("#")[0]):
                return place(file, number)
    return ""


def place(file: str, line: int) -> str:
    """A place for messages: the file without its folder, and the line."""
    return f"{Path(file).name}:{line}"


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module:
    """A file's syntax tree; an empty one if the file does not exist."""
    return ast.parse("".join(linecache.getlines(file)))


def _given(statements: list[ast.stmt], name: str) -> int:
    """The line of the first statement that assigns this name; 0 if none does."""
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return node.lineno
    return 0


def source_of(cls: type) -> str:
    """The source code of the author's files."""
    return "\n".join("".join(linecache.getlines(file)) for file in files_of(cls)) or inspect.getsource(cls)
