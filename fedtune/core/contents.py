"""A value's content as a key: two keys are equal if code that reads the value can see no difference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LIMIT = 50_000  # values in all, and numbers in a tensor


class Unreadable(ValueError):
    """A value that may change without its key telling."""


def values_of(tensor: Tensor) -> bytes:
    """All that a plain tensor holds, in the order of its elements."""
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return values.view(-1).view(torch.uint8).numpy().tobytes()


class Held:
    """A tensor with what it holds now: another one is never the same, as a tape reads it where it lies."""

    def __init__(self, tensor: Tensor) -> None:
        """tensor: a plain one."""
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
        if not plain or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise Unreadable("a tensor of another kind")
        if vars(tensor):
            raise Unreadable("a tensor with attributes")
        if tensor.numel() > LIMIT:
            raise Unreadable(f"a tensor of more than {LIMIT:,} numbers")
        self.tensor, self.form = tensor, (tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad)
        self.content = values_of(tensor)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same tensor, with the same numbers."""
        if not isinstance(other, Held) or self.tensor is not other.tensor:
            return False
        return self.form == other.form and self.content == other.content

    def __hash__(self) -> int:
        """By content."""
        return hash(self.content)


class Kept:
    """A thing that is itself, held so that no other gets its identity."""

    def __init__(self, thing: Any) -> None:
        """thing: a function, a class or a layer."""
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        """Whether it is the same thing."""
        return isinstance(other, Kept) and self.thing is other.thing

    def __hash__(self) -> int:
        """By identity."""
        return id(self.thing)


class Key:
    """A long key that is compared often: its hash is computed once."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Hashable) -> None:
        """value: the key itself."""
        self.value, self.hash = value, hash(value)

    def __eq__(self, other: object) -> bool:
        """Whether the keys are equal."""
        return self is other or (isinstance(other, Key) and self.hash == other.hash and self.value == other.value)

    def __hash__(self) -> int:
        """As it was computed."""
        return self.hash


class Contents:
    """Keys of values, up to a limit together.

    `changeable`: whether any is a list or the like, which code could write into; `fluid`: whether any, be it an array,
    may come to hold something else and still be the same one.
    """

    def __init__(self, other: Callable[[Any], Hashable]) -> None:
        """other: the key of what is neither a number, a text, a container of such nor a tensor; or Unreadable."""
        self.other, self.left, self.changeable, self.fluid = other, LIMIT, False, False

    def __call__(self, value: Any) -> Hashable:  # noqa: PLR0911
        """The key; Unreadable, with what it is, for what may change unseen."""
        self.left -= 1
        if self.left < 0:
            raise Unreadable(f"more than {LIMIT:,} values")
        kind = type(value)
        if value is None or kind in _PLAIN:
            return kind, value
        if kind in (float, complex):  # 0.0 and -0.0 are equal, and a nan is not itself
            return kind, repr(value)
        self.changeable |= kind in _CHANGEABLE
        self.fluid |= kind not in _FIRM
        if kind in (list, tuple, set, frozenset) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return kind, *map(self, value)
        if isinstance(value, Mapping) and kind in _MAPPINGS:
            return kind, *((self(k), self(v)) for k, v in value.items())
        if isinstance(value, Tensor):
            return Held(value)
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.size <= LIMIT:
            return kind, value.dtype.str, value.shape, value.tobytes()
        return self.other(value)


_PLAIN = (
    bool,
    int,
    str,
    bytes,
    type(Ellipsis),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
_MAPPINGS = (dict, type(type.__dict__))
_CHANGEABLE = (list, set, dict)
_FIRM = (tuple, frozenset, FunctionType, BuiltinFunctionType, type)  # or what they hold is asked for itself


def in_words(value: Any) -> str:
    """What a value is, for a sentence."""
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return "which may depend on more than its arguments"
    return "which is a class" if isinstance(value, type) else f"an instance of {type(value).__name__}"
