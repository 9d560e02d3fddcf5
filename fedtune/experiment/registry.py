"""Algorithms by name: the files of `trainables/`, classes in a user's files, and those of installed packages.

This is the only module that looks into `trainables/`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedtune.core.about import FOLDER
from fedtune.core.errors import UserError, require_known
from fedtune.user_code import entry_points, user_files

if TYPE_CHECKING:
    from fedtune.experiment.algorithm import Algorithm

GROUP = "algorithms"  # the group of entry points


def names() -> list[str]:
    """The names of all algorithms: files of `trainables/` without a leading underscore, and those of packages."""
    return sorted({*_built_in(), *entry_points.names(GROUP)})


def find(name: str) -> type[Algorithm]:
    """The algorithm class of this name (for a user's file, its canonical name); UserError with the nearest name."""
    if user_files.is_own(name):
        from fedtune.experiment import user_algorithms

        return user_algorithms.find(name)
    require_known("algorithm", [name], names(), "fedtune list")
    from fedtune.experiment.algorithm import Algorithm  # it loads torch, which listing names does not need

    if offered := entry_points.find(GROUP, name, "algorithm", _built_in()):
        from fedtune.experiment import user_algorithms

        return user_algorithms.checked(offered, name)
    module = importlib.import_module(f"fedtune.trainables.{name}")
    classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    found_classes = [c for c in classes if issubclass(c, Algorithm)]
    if len(found_classes) != 1:
        raise UserError(f"trainables/{name}.py must define one algorithm, but it defines {len(found_classes)}")
    return found_classes[0]


def summary(name: str) -> str:
    """What an algorithm does, in a line, without importing it: the first line of its file's docstring."""
    if name not in _built_in():
        return "of an installed package"
    file = FOLDER / "trainables" / f"{name}.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].partition(": ")[2]


def spaces(name: str) -> dict[str, Any]:
    """An algorithm's search spaces by name: those of its file in search_spaces/, or of the user's file."""
    find(name)
    if user_files.is_own(name):
        from fedtune.experiment import user_algorithms

        return user_algorithms.spaces(name)
    module = f"fedtune.search_spaces.{name}"
    if importlib.util.find_spec(module) is None:
        return {}
    return members(importlib.import_module(module))


def members(module: ModuleType) -> dict[str, Any]:
    """The search spaces that a module holds."""
    return {n: v for n, v in vars(module).items() if not n.startswith("_") and isinstance(v, dict | list)}


@cache
def _built_in() -> list[str]:
    """The files of `trainables/`; planning a search asks for them a thousand times."""
    files = pkgutil.iter_modules([str(FOLDER / "trainables")])
    return sorted(file.name for file in files if not file.name.startswith("_"))
