"""fedtune's modules, imported ahead of the processes that import them."""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PACKAGE = "fedtune"


class ImportedAhead(MetaPathFinder):
    """Gives what was imported ahead to whoever would import it from there; some tests have fedtune from another place.

    Until then nobody sees it: `sys.modules` has none of it.
    """

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def load(self, names: tuple[str, ...]) -> None:
        """Import these modules of fedtune and what they import of it."""
        for name in names:
            importlib.import_module(name)
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            self.modules[name] = sys.modules.pop(name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The package, with all that there is of it, if that is the one that is found; once."""
        if name != PACKAGE or not self.modules:
            return None
        modules, self.modules = self.modules, {}
        spec = find_spec(name)  # by all that find modules: an editable installation has a finder of its own
        if spec and spec.origin and spec.origin == modules[name].__file__:
            spec.loader = Given(modules, spec.origin)
            return spec
        forget()
        return None


def forget() -> None:
    """Take from PyTorch what fedtune's modules gave it: fedtune is imported from another place, and gives its own.

    With both, chance decides of which a checkpoint's objects are.
    """
    if "torch" in sys.modules:
        from torch import serialization

        known = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        others = [one for one in known if getattr(one, "__module__", "").partition(".")[0] != PACKAGE]
        serialization.add_safe_globals(others)


class Given(SourceFileLoader):
    """Loads modules that there are already."""

    def __init__(self, modules: dict[str, ModuleType], origin: str) -> None:
        super().__init__(PACKAGE, origin)
        self.modules = modules

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The package; it becomes one of this specification."""
        return self.modules[PACKAGE]

    def exec_module(self, module: ModuleType) -> None:
        """Its code ran ahead, and that of all others."""
        sys.modules.update(self.modules)
