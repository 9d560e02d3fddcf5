"""The form of a net: everything about it except the values of its tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

_TENSORS = ("_parameters", "_buffers")
_PLAIN = (bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_ITSELF = (FunctionType, BuiltinFunctionType, type)


class Unreadable(ValueError):
    """A value that could change without its key changing."""


def form_of(net: nn.Module) -> Hashable | None:
    """A key that is equal for pure nets that compute the same function of their tensors.

    None if modules hold more than numbers, strings, collections of these, and functions.
    """
    try:
        return tuple(_parts(net))
    except (Unreadable, RuntimeError, RecursionError):  # or parameters without values, modules that hold each other
        return None


def content_of(value: Any) -> Hashable:
    """A key that is equal for values that code cannot distinguish; Unreadable for values that may change unnoticed."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return kind, value
    if kind in (float, complex):  # 0.0 and -0.0 are equal, and a nan is not itself
        return kind, repr(value)
    if kind in (list, tuple, set, frozenset):
        return kind, *map(content_of, value)
    if kind is dict:
        return kind, *((content_of(k), content_of(v)) for k, v in value.items())
    if kind in _ITSELF:
        held: Hashable = value
        return held
    raise Unreadable(f"an instance of {kind.__name__}")


def _parts(net: nn.Module) -> Iterator[Hashable]:
    first: dict[int, str] = {}  # id of a module or tensor -> its first place, because it may stand in several
    for path, module in net.named_modules(remove_duplicate=False):
        yield path, type(module), first.setdefault(id(module), path)
        for name, value in vars(module).items():
            if name in _TENSORS:
                for key, tensor in value.items():
                    stays = key in module._non_persistent_buffers_set
                    yield name, key, _metadata(tensor, stays), first.setdefault(id(tensor), f"{path}.{key}")
            elif "hooks" in name:
                if value:
                    raise Unreadable("a hook")
            elif name not in ("_modules", "training"):
                yield name, content_of(value)


def _metadata(tensor: Tensor | None, with_values: bool) -> Hashable:
    """A tensor's shape, memory order, type and device; and its values, if no state_dict contains them."""
    if tensor is None:
        return None
    values = b""
    if with_values:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        values = plain.view(-1).view(torch.uint8).numpy().tobytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, values
