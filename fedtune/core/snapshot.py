"""What was read, as it was: whether all of it is still the same is found out faster than by reading it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import is_
from types import CellType, FunctionType
from typing import Any

_NOTHING = object()  # what a namespace holds under a name that it has not


class Snapshot:
    """Namespaces, functions and values; a value that cannot be written into is unchanged where it is the same one."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.whole: list[tuple[Mapping[str, Any], list[str], list[Any]]] = []
        self.empty: list[Mapping[Any, Any]] = []  # these were, and are to be
        self.entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self.functions: list[tuple[FunctionType, list[Any]]] = []
        self.cells: list[tuple[CellType, Any]] = []
        self.types: list[tuple[Any, type]] = []
        self.orders: list[tuple[type, tuple[type, ...]]] = []  # in which classes are asked for a name
        self.contents: list[tuple[Any, Hashable]] = []  # of values that could be written into

    def namespace(self, held: Mapping[str, Any]) -> None:
        """All that is held under names."""
        self.whole.append((held, [*held], [*held.values()]))

    def entry(self, held: Mapping[str, Any], name: str) -> None:
        """What is held under one name, or that nothing is."""
        self.entries[id(held), name] = (held, name, held.get(name, _NOTHING))

    def function(self, function: FunctionType) -> None:
        """What a function runs, and what it holds itself."""
        self.functions.append((function, _parts(function)))
        self.namespace(vars(function))
        if function.__kwdefaults__:
            self.namespace(function.__kwdefaults__)
        self.cells += [(cell, cell.cell_contents) for cell in function.__closure__ or ()]

    def unchanged(self, content: Callable[[Any], Hashable]) -> bool:
        """Whether all is as it was.  content: of a value that could be written into, now."""
        try:
            return (
                not any(self.empty)
                and all(type(thing) is kind for thing, kind in self.types)
                and all(kind.__mro__ is order for kind, order in self.orders)
                and all(all(map(is_, _parts(function), parts)) for function, parts in self.functions)
                and all(cell.cell_contents is value for cell, value in self.cells)
                and all(held.get(name, _NOTHING) is value for held, name, value in self.entries.values())
                and all([*held] == names and all(map(is_, held.values(), values)) for held, names, values in self.whole)
                and all(content(value) == before for value, before in self.contents)
            )
        except ValueError:  # a cell that is empty now, or a value that has no content any more
            return False


def _parts(function: FunctionType) -> list[Any]:
    return [function.__code__, function.__defaults__, function.__kwdefaults__]
