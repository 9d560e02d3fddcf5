"""What was read, as it was: whether all of it is still the same is found out faster than by reading it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import is_
from types import CellType, CodeType, FunctionType
from typing import Any

_NOTHING = object()  # what a namespace holds under a name that it has not


class Snapshot:
    """Namespaces, functions and values; a value that cannot be written into is unchanged where it is the same one."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.holders: list[tuple[Any, Mapping[str, Any]]] = []
        self.whole: list[tuple[Mapping[str, Any], list[str], list[Any]]] = []
        self.empty: list[Mapping[Any, Any]] = []  # these were, and are to be
        self.entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self.codes: list[tuple[FunctionType, CodeType]] = []
        self.functions: list[tuple[FunctionType, list[Any]]] = []
        self.cells: list[tuple[CellType, Any]] = []
        self.types: list[tuple[Any, type]] = []
        self.orders: list[tuple[type, tuple[type, ...]]] = []  # in which classes are asked for a name
        self.contents: list[tuple[Any, Hashable]] = []  # of values that could be written into

    def namespace(self, held: Mapping[str, Any]) -> None:
        """All that is held under names."""
        self.whole.append((held, [*held], [*held.values()]))

    def holder(self, thing: Any) -> None:
        """A thing's type, and all that it holds."""
        self.types.append((thing, type(thing)))
        self.holders.append((thing, vars(thing)))
        self.namespace(vars(thing))

    def entry(self, held: Mapping[str, Any], name: str) -> None:
        """What is held under one name, or that nothing is."""
        self.entries[id(held), name] = (held, name, held.get(name, _NOTHING))

    def code(self, function: FunctionType) -> None:
        """What a function runs."""
        self.codes.append((function, function.__code__))

    def function(self, function: FunctionType) -> None:
        """What a function holds: attributes, default arguments, variables of the functions around it, none empty."""
        self.holder(function)
        self.functions.append((function, _defaults(function)))
        if function.__kwdefaults__ is not None:
            self.namespace(function.__kwdefaults__)
        self.cells += [(cell, cell.cell_contents) for cell in function.__closure__ or ()]

    def unchanged(self, content: Callable[[Any], Hashable]) -> bool:
        """Whether all is as it was.  content: of a value that could be written into, now."""
        try:
            return (
                not any(self.empty)
                and all(type(thing) is kind for thing, kind in self.types)
                and all(kind.__mro__ is order for kind, order in self.orders)
                and all(vars(thing) is held for thing, held in self.holders)
                and all(function.__code__ is code for function, code in self.codes)
                and all(all(map(is_, _defaults(function), before)) for function, before in self.functions)
                and all(cell.cell_contents is value for cell, value in self.cells)
                and all(held.get(name, _NOTHING) is value for held, name, value in self.entries.values())
                and all([*held] == names and all(map(is_, held.values(), values)) for held, names, values in self.whole)
                and all(content(value) == before for value, before in self.contents)
            )
        except ValueError:  # a cell that is empty now, or a value that has no content any more
            return False


def _defaults(function: FunctionType) -> list[Any]:
    return [function.__defaults__, function.__kwdefaults__]
