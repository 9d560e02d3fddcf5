"""Execute users' files from their content as it was read, each file's modules as a package with its folder's name.

A file's imports search its folder first, as those of a script do.  Only its own do: `utils` beside it becomes the
module `FOLDER@1.utils`, so two folders may both have one, and none hides an installed package from anybody else.

Nothing that a file keeps in its modules outlives a trial: each run has an `Execution` of its own.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import itertools
import linecache
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from fedtune.core.errors import UserError
from fedtune.user_code.user_errors import UserCodeError, only, text

_NEVER = {*sys.stdlib_module_names, "fedtune"}  # names that a user's folder cannot replace
_packages: dict[str, _Package] = {}  # those whose modules can be imported, by name
_ended: list[str] = []  # those of executions that are gone
_numbers = itertools.count(1)


class UserFile(NamedTuple):
    """One of the user's files, or one folder of data."""

    name: str  # scaffold.py, wards.npz, wards/; for an imported module its path in the folder
    path: str  # absolute, of the original
    sha256: str
    content: bytes | None  # None for data, which are not carried along
    about: dict[str, Any] = {}  # metadata of data, for processes that cannot read them, as JSON values


class Execution:
    """What users' files have become in one run, where each file is executed once; it is forgotten with this object."""

    def __init__(self) -> None:
        """Nothing is executed yet."""
        self._of_folder: dict[str, _Package] = {}
        self._names: list[str] = []  # of packages, also of those whose files have changed since
        self.unpickled: dict[bytes, Any] = {}
        _forget()
        weakref.finalize(self, _ended.extend, self._names).atexit = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within this context, what is loaded is of this run."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def module(self, main: str, files: Mapping[str, UserFile]) -> ModuleType:
        """The module of one of these files, which are of one folder."""
        folder = str(Path(files[main].path).parent)
        package = self._of_folder.get(folder)
        if package is None or not package.agrees(files):
            package = self._of_folder[folder] = _Package(folder)
            self._names.append(package.name)
        package.files |= {package.module_of(name): file for name, file in files.items()}
        return importlib.import_module(package.module_of(main))

    def of_pickle(self, content: bytes) -> Any:
        """The class that was pickled by value, with globals of its own."""
        if content not in self.unpickled:
            self.unpickled[content] = _unpickled_anew(content)
        return self.unpickled[content]


def current() -> Execution:
    """The execution that is used here: that of a run, or else the process's own."""
    return _current.get()


def kind(cls: type) -> tuple[str, str]:
    """What is equal for a class and the class that another execution of the same file gives."""
    module = cls.__module__
    return module.partition(".")[2] if module.partition(".")[0] in _packages else module, cls.__qualname__


def reached(
    folder: Path, main: str, read: Callable[[str], bytes], find: Callable[[str], Iterable[str]]
) -> dict[str, bytes]:
    """The content of a file and of the modules that it imports from its folder, directly or indirectly; itself first.

    Files are named by their paths in the folder.  find: those that the import of a top-level name may mean.
    UserError for code that Python cannot parse.
    """
    found: dict[str, bytes] = {}
    names = [main]
    for name in names:  # it grows meanwhile
        found[name] = read(name)
        for root in sorted(_roots(name, found[name], str(folder / name))):
            names += [other for other in find(root) if other not in names]
    return found


class _Package:
    """A folder's files as a package, whose modules Python's import system executes from here."""

    def __init__(self, folder: str) -> None:
        # no statement can import a name with an @, nor be mistaken for a package of somebody else's
        self.name = f"{Path(folder).name.replace('.', '_')}@{next(_numbers)}"
        self.files: dict[str, UserFile] = {}  # by their modules' names
        _packages[self.name] = self

    def module_of(self, name: str) -> str:
        """The name of a file's module."""
        *folders, last = name.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join([self.name, *folders, last.replace(".", "_")])

    def agrees(self, files: Mapping[str, UserFile]) -> bool:
        """Whether none of these has changed."""
        return all(self.files.get(self.module_of(n), f).sha256 == f.sha256 for n, f in files.items())

    def spec(self, name: str) -> ModuleSpec | None:
        """What Python asks for a module: who executes it, and whether it is a package."""
        file = self.files.get(name)
        is_package = name == self.name or any(other.startswith(f"{name}.") for other in self.files)
        if not file and not is_package:
            return None
        spec = ModuleSpec(name, self, origin=file.path if file else None, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = file is not None
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """A module as Python makes it."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute its file."""
        if file := self.files.get(module.__name__):
            vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
            with _apart(file.path):
                exec(_compiled(file.path, file.content or b""), vars(module))

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        """The `import` of the folder's files: it searches the folder's modules before installed packages."""
        root = name.partition(".")[0]
        top = f"{self.name}.{root}"
        if level or root in _NEVER or self.spec(top) is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist or ())
        return found if fromlist else sys.modules[top]


class _Finder:
    """On sys.meta_path: where the modules of these packages are."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = _packages.get(name.partition(".")[0])
        return package.spec(name) if package else None


def _forget() -> None:
    """Drop the modules of executions that are gone; not as they go, as somebody may be iterating over sys.modules."""
    while _ended:
        name = _ended.pop()
        for module in [m for m in list(sys.modules) if m.partition(".")[0] == name]:
            del sys.modules[module]
        del _packages[name]


sys.meta_path.insert(0, _Finder)
_current: ContextVar[Execution] = ContextVar("_current", default=Execution())  # noqa: B039 - the process's own


@lru_cache(maxsize=256)
def _compiled(path: str, content: bytes) -> CodeType:
    """A file's code, whose lines tracebacks show as they were read."""
    source = content.decode(errors="replace")
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    return compile(content, path, "exec", dont_inherit=True)


@contextmanager
def _apart(path: str) -> Iterator[None]:
    """What a file draws while it is imported is the same in each run, and moves no stream of anybody else's.

    UserError if it changes PyTorch's settings, on which all numbers of the process depend; they are put back.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    states = random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()
    before = _modes(torch)
    random.seed(0)
    if numpy:
        numpy.random.seed(0)
    if torch:
        torch.default_generator.manual_seed(0)  # not the GPUs'
    try:
        yield
    finally:
        random.setstate(states[0])
        if numpy:
            numpy.random.set_state(states[1])
        if torch:
            torch.set_rng_state(states[2])
    if torch and _modes(torch) != before:
        torch.set_default_dtype(before[0])
        torch.set_default_device(None if before[1].type == "cpu" else before[1])
        torch.set_grad_enabled(before[2])
        raise UserError(
            f"{path} changes PyTorch's default type, device or gradient mode while it is imported, on which the "
            "numbers of everything that runs in the process would depend; say it where tensors are made"
        )


def _modes(torch: Any) -> tuple[Any, ...]:
    return (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()) if torch else ()


def _unpickled_anew(content: bytes) -> Any:
    """What was pickled by value: cloudpickle would give the class that it gave before, with what that remembers."""
    from ray.cloudpickle import cloudpickle

    trackers = {n: v for n, v in vars(cloudpickle).items() if n.startswith("_DYNAMIC_CLASS_TRACKER_BY")}
    try:
        vars(cloudpickle).update({name: type(tracker)() for name, tracker in trackers.items()})
        return pickle.loads(content)
    finally:
        vars(cloudpickle).update(trackers)


# ---- what a file imports from its folder


@lru_cache(maxsize=256)
def _roots(name: str, content: bytes, path: str) -> frozenset[str]:
    """The top-level names that a file imports, relative to the folder; UserError if Python cannot parse it."""
    try:
        tree = ast.parse(content, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        number = error.lineno if isinstance(error, SyntaxError) else None
        what = f"{path}{f':{number}' if number else ''} is not valid Python: {text(error)}"
        raise UserCodeError(what, only(error) if number else "") from error
    package = name.split("/")[:-1]
    return frozenset(full.split(".")[0] for node in ast.walk(tree) for full in _imported(node, package))


def _imported(node: ast.AST, package: list[str]) -> Iterator[str]:
    """The names that a statement may import from the folder.  package: the file's, relative to the folder."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] not in _NEVER)
    elif isinstance(node, ast.ImportFrom) and node.level:
        above = package[: max(0, len(package) + 1 - node.level)]
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield from [base] if base else [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in _NEVER:
        yield node.module


def beside(folder: Path, root: str) -> list[str]:
    """The files of a module or package of this name in a folder on disk; none if it is not there."""
    package, alone = folder / root, folder / f"{root}.py"
    if not (package / "__init__.py").is_file():
        if alone.is_file():
            return [alone.name]
        if not package.is_dir() or importlib.util.find_spec(root):
            return []  # a plain folder comes after what is installed
    files = (f.relative_to(folder) for f in package.rglob("*.py") if f.is_file())
    return sorted(f.as_posix() for f in files if not any(part.startswith(".") for part in f.parts))
