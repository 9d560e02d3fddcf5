"""Import fedtune's sibling packages (trainables, search_spaces, analysis), never others of the same name.

`python -m fedtune.search` puts the current directory first on sys.path, and Ray's workers put the driver's there.  So a
folder called `trainables` in it, even an empty one, would hide fedtune's package.
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
    """The folder of fedtune's package of this name: beside fedtune."""
    return FOLDER.resolve().parent / name


def pin(*names: str) -> None:
    """Make imports of these packages find fedtune's own in this process.  names: those needed now; default: all.

    A package of such a name that was imported from elsewhere is removed from sys.modules, with its modules; existing
    references to it stay valid.
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
