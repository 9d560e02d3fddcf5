"""Which code is recorded, and how recordings are identified: code declared pure, on nets declared pure.

Purity is not proved here: `fedtune check`, and every run now and then, compares code with its recording.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from fedtune.core.pure import is_declared, is_known
from fedtune.nn.net import HOOKS, hooks_on_all
from fedtune.tracing.form import Unreadable, content_of


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
