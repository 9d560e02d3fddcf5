"""What nets of one form have in common: everything but the values of their tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor, nn

from fedtune.core.contents import Contents, Kept, Unreadable, in_words, values_of
from fedtune.core.pure_functions import is_known, is_pure

_TENSORS = ("_parameters", "_buffers")


def form_of(net: nn.Module) -> Hashable | None:
    """A key, equal for nets that compute the same of the same tensors; None where that cannot be told.

    It can for modules of PyTorch's and fedtune's that hold numbers, texts and pure functions.
    """
    contents = Contents(_other)
    try:
        return tuple(_parts(net, contents))
    except (Unreadable, RuntimeError, RecursionError):  # or parameters without values, modules that hold each other
        return None


def _parts(net: nn.Module, contents: Contents) -> Iterator[Hashable]:
    first: dict[int, str] = {}  # of modules and tensors that stand in several places
    for path, module in net.named_modules(remove_duplicate=False):
        if not is_known(type(module).__module__):
            raise Unreadable(in_words(module))
        yield path, Kept(type(module)), first.setdefault(id(module), path)
        for name, value in vars(module).items():
            if name in _TENSORS:
                for key, tensor in value.items():
                    stays = key in module._non_persistent_buffers_set
                    yield name, key, _look(tensor, stays), first.setdefault(id(tensor), f"{path}.{key}")
            elif "hooks" in name:
                if value:
                    raise Unreadable("a hook")
            elif name not in ("_modules", "training"):
                yield name, contents(value)


def _look(tensor: Tensor | None, with_values: bool) -> Hashable:
    """What a tensor is like; its values, too, where no state_dict has them."""
    if tensor is None:
        return None
    values = values_of(tensor) if with_values else b""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, values


def _other(value: Any) -> Hashable:
    if is_pure(value):
        return Kept(value)
    raise Unreadable(in_words(value))
