"""The packages that stand beside fedtune, never others of their names.

`python -m fedtune.search` puts the current directory first on the path, and Ray's workers put the driver's there, so a
folder called `trainables` in it, even an empty one, would hide ours.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path

from fedtune.core.about import FOLDER

NAMES = ("trainables", "search_spaces", "analysis")


@cache
def folder(name: str) -> Path:
    """Where our package of this name lies: beside fedtune."""
    return FOLDER.resolve().parent / name


def pin(*names: str) -> None:
    """From now on an import of these packages finds ours, in this process.  names: those that are needed now.

    A package of such a name that was imported before from elsewhere is forgotten, with its modules; whoever holds it
    keeps it.
    """
    for name in names or NAMES:
        there = sys.modules.get(name)
        if there and folder(name) in (Path(path).resolve() for path in there.__path__):
            continue
        for module in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
            del sys.modules[module]
        spec = importlib.util.spec_from_file_location(name, folder(name) / "__init__.py")
        assert spec and spec.loader
        sys.modules[name] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
