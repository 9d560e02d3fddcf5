"""Record the PyTorch operations that a piece of tensor code runs, as they reach the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Slot:
    """A tensor's number on a tape."""

    number: int


@dataclass(frozen=True)
class Number:
    """The position of a real number among the numbers of a tape."""

    number: int


class Line(NamedTuple):
    """An operation, its arguments (with slots in place of tensors), and the slots of its results."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[int | None, ...]
    single: bool  # whether it returns one tensor, not a tuple of them
    writes: frozenset[int]  # the slots that it changes in place
    metadata: tuple[Any, ...]  # types, shapes and memory orders of its results: a number may decide them

    @property
    def made(self) -> list[int]:
        """The slots of results that are new tensors."""
        return [s for s in self.outs if s is not None and s not in self.writes]


class Captures(NamedTuple):
    """The tensors and real numbers that code uses besides its arguments."""

    constants: list[Tensor]
    numbers: list[float]

    def metadata(self) -> list[tuple[Any, ...]]:
        """The properties of the constants that a tape relies on."""
        return [_metadata(t) for t in self.constants]


class OperationRecorder(TorchDispatchMode):
    """Records the operations within its context; a tensor that is neither an argument nor made there is a constant."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        """given: the code's arguments, which get the first slots."""
        super().__init__()
        self.tensors: list[Tensor] = []  # by slot; kept alive, so that no id is reused
        self.lines: list[Line] = []
        self.constants: list[int] = []
        self.numbers: list[float] = []  # real numbers among the arguments
        self.untraceable = ""  # why it cannot be replayed
        self._slots: dict[int, int] = {}
        for tensor in arguments:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> int:
        self._slots[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def slot(self, tensor: Tensor) -> int:
        """The tensor's slot; a tensor that was not seen before is a constant."""
        if id(tensor) not in self._slots:
            self.constants.append(self._add(tensor))
        return self._slots[id(tensor)]

    def captures(self) -> Captures:
        """Constants and real numbers: what may differ between two recordings of the same code."""
        return Captures([self.tensors[s] for s in self.constants], self.numbers)

    def _slotted(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Slot(self.slot(value))
        if type(value) is float:
            self.numbers.append(value)
            return Number(len(self.numbers) - 1)
        return type(value)(map(self._slotted, value)) if type(value) in (list, tuple) else value

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Avoid wrapping for a compiler that is not used: importing it takes over a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record it."""
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        inputs, keywords = self._slotted(tuple(args)), {n: self._slotted(v) for n, v in kwargs.items()}
        out = func(*args, **kwargs)
        outs = [out] if isinstance(out, Tensor) else out
        if func not in _WRITES:
            _WRITES[func] = _declared(func)
        writing = _WRITES[func]
        tensors = isinstance(outs, list | tuple) and all(t is None or isinstance(t, Tensor) for t in outs)
        if writing is None or not tensors or (func is _INDEX and any(_is_mask(t) for t in args[1])):
            self.untraceable = f"{func} depends on more than the tensors it is given, or gives something else"
            return out
        changed = [v for i, v in enumerate(inputs) if i in writing] + [v for n, v in keywords.items() if n in writing]
        writes = frozenset(slots_in(changed))
        slots = tuple(None if t is None else self._slots.get(id(t), -1) for t in outs)
        slots = tuple(self._add(t) if s == -1 else s for s, t in zip(slots, outs, strict=True))
        metadata = tuple(None if t is None else _metadata(t) for t in outs)
        single = isinstance(out, Tensor)
        self.lines.append(Line(func, inputs, keywords, slots, single, writes=writes, metadata=metadata))
        return out


_NOT_REPEATABLE = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
_WRITES: dict[Any, frozenset[int | str] | None] = {}  # by operation: the arguments it changes; None: not repeatable

_INDEX = torch.ops.aten.index.Tensor  # the size of its result depends on values only if an index is a mask
_UNDECLARED = ("running_mean", "running_var")  # batch normalisation writes into these and does not say so


def _metadata(t: Tensor) -> tuple[Any, ...]:
    return t.dtype, t.shape, t.stride(), t.device


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _declared(func: Any) -> frozenset[int | str] | None:
    if func is not _INDEX and _NOT_REPEATABLE.intersection(func.tags):
        return None
    declared = [(i, a) for i, a in enumerate(func._schema.arguments)]
    return frozenset(
        key
        for i, a in declared
        if (a.alias_info is not None and a.alias_info.is_write) or a.name in _UNDECLARED
        for key in (i, a.name)
    )


def slots_in(value: Any) -> list[int]:
    """The slots in an argument."""
    if isinstance(value, Slot):
        return [value.number]
    if isinstance(value, dict):
        value = list(value.values())
    return [s for v in value for s in slots_in(v)] if isinstance(value, list | tuple) else []
