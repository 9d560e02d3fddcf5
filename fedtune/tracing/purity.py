"""Which code is recorded, and how recordings are identified: code declared pure, on nets declared pure.

The key of a net is its form: everything about it except the values of its tensors.

Purity is not proved here: `fedtune check`, and every run now and then, compares code with its recording.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.pure import is_declared, is_known
from fedtune.nn.net import HOOKS, hooks_on_all


class Applied(NamedTuple):
    """Code with its first arguments bound, such as a loss for one round."""

    code: Hashable
    arguments: Hashable


class Method(NamedTuple):
    """A method of an object whose class is declared pure; the owner's key contains the object's fields."""

    function: Callable[..., Any]
    owner: Hashable


def same_code(code: Hashable) -> Hashable | None:
    """The key of this code for any bound arguments; None if none are bound."""
    return Applied(code.code, "any") if isinstance(code, Applied) else None


def same_method(code: Hashable) -> Hashable | None:
    """The key of this method for any fields of its object and any bound arguments; None if it is no method."""
    if isinstance(code, Applied):
        return same_method(code.code)
    return Method(code.function, code.owner[0]) if isinstance(code, Method) and isinstance(code.owner, tuple) else None


def identity(code: Callable[..., Any]) -> Hashable | None:
    """A key for pure code and all that it depends on; None for code that is not declared pure."""
    try:
        if isinstance(code, partial):
            inner = identity(code.func)
            return None if inner is None or code.keywords else Applied(inner, content_of(code.args))
        if isinstance(code, MethodType):
            owner = code.__self__
            if not is_declared(type(owner)):
                return None
            return Method(code.__func__, (type(owner), *((n, content_of(v)) for n, v in vars(owner).items())))
    except (Unreadable, RecursionError):
        return None
    known = isinstance(code, FunctionType) and is_known(code.__module__) and not code.__closure__
    return code if known or is_declared(code) else None


def unwrapped(code: Any) -> Any:
    """The function inside `functools.partial` objects."""
    while isinstance(code, partial):
        code = code.func
    return code


def why_eager(code: Callable[..., Any], net: nn.Module) -> str:
    """Why this code on this net is not recorded; "" if it may be."""
    return look(code, net)[1]


def look(code: Callable[..., Any], net: nn.Module) -> tuple[Hashable | None, str]:
    """The key of this code on this net, or why it is not recorded."""
    if (key := identity(code)) is None:
        return None, _why_code(unwrapped(code))
    if hooked := next((m for m in net.modules() if any(vars(m)[kind] for kind in HOOKS)), None):
        return None, f"{_layer_name(net, hooked)} has a hook"
    reason = "every module has a hook" if hooks_on_all() else _why_layers(net)
    return (None, reason) if reason else (key, "")


def _why_code(code: Any) -> str:
    if not isinstance(code, MethodType):
        return f"{getattr(code, '__qualname__', type(code).__name__)} is not declared pure (@fedtune.pure)"
    if is_declared(type(code.__self__)):
        return f"{code.__qualname__} has an argument or a field that is more than numbers and texts"
    return f"{type(code.__self__).__name__} does not say pure = True"


_LAYERS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _why_layers(net: nn.Module) -> str:
    """Why a net's layers, as they were at the first call, are not recorded; "" if they may be."""
    if net not in _LAYERS:
        _LAYERS[net] = next(_undeclared(net), "")
    return _LAYERS[net]


def _undeclared(net: nn.Module) -> Iterator[str]:
    """The layers that are neither declared pure nor plain layers of torch.nn."""
    declared = {"", *getattr(net, "declared", ())}
    for path, module in net.named_modules():
        if path.split(".")[0] not in declared and not is_functional(module):
            yield f"{_layer_name(net, module)} is no plain layer of torch.nn's and its model does not say @fedtune.pure"


def _layer_name(net: nn.Module, module: nn.Module) -> str:
    name = next((n for n, m in net.named_modules() if m is module), "")
    return f"layer {name} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"


# modules of torch.nn's layers that compute from their inputs, parameters and buffers alone
_FUNCTIONAL = {
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "batchnorm", "channelshuffle", "container", "conv", "distance", "dropout", "flatten", "fold",
        "instancenorm", "linear", "loss", "normalization", "padding", "pixelshuffle", "pooling", "sparse",
        "transformer", "upsampling",
    )
}  # fmt: skip


def is_functional(module: nn.Module) -> bool:
    """Whether a module is an unmodified layer of torch.nn or one of fedtune's, without a function of the user's."""
    cls = type(module)
    is_torch = cls is nn.Module or (cls.__module__ in _FUNCTIONAL and not cls.__name__.startswith(("Lazy", "Sync")))
    is_shrinking = getattr(module, "max_norm", None) is not None  # an embedding that shrinks its rows in `forward`
    own = [v for v in vars(module).values() if callable(v) and not isinstance(v, nn.Module)]
    return (
        (is_torch or cls.__module__.startswith("fedtune."))
        and not is_shrinking
        and all(is_known(getattr(v, "__module__", None) or "") for v in own)
    )


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
        return tuple(_form(net))
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


def _form(net: nn.Module) -> Iterator[Hashable]:
    first: dict[int, str] = {}  # id of a module or tensor -> its first place, because it may stand in several
    for path, module in net.named_modules(remove_duplicate=False):
        yield path, type(module), first.setdefault(id(module), path)
        for name, value in vars(module).items():
            if name in _TENSORS:
                for key, tensor in value.items():
                    stays = key in module._non_persistent_buffers_set
                    yield name, key, _of_tensor(tensor, stays), first.setdefault(id(tensor), f"{path}.{key}")
            elif "hooks" in name:
                if value:
                    raise Unreadable("a hook")
            elif name not in ("_modules", "training"):
                yield name, content_of(value)


def _of_tensor(tensor: Tensor | None, with_values: bool) -> Hashable:
    """A tensor's shape, memory order, type and device; and its values, if no state_dict contains them."""
    if tensor is None:
        return None
    values = b""
    if with_values:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        values = plain.view(-1).view(torch.uint8).numpy().tobytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, values
