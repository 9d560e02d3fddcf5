"""The contract of recorded steps: code that says it is pure depends on its arguments and fields alone.

So its operations in one call are those of every like call.  An algorithm says it by `pure = True`, a function by
`@fedtune.pure`.
"""

from __future__ import annotations

from typing import Any, TypeVar

Declared = TypeVar("Declared")
_MARK = "_fedtune_pure"
_PACKAGES = {"fedtune", "torch", "torchvision"}


def pure(function: Declared) -> Declared:
    """Declare that a model's function, or a loss that is not a method, depends on its arguments alone.

    A declared model's layers compute from their inputs, parameters and buffers, keep nothing in Python and have no
    hooks.  Steps of such code are recorded once and run again; see docs/reference/hooks.md.

    >>> import fedtune
    >>> from torch import nn
    >>> @fedtune.pure
    ... def net(shape, classes):
    ...     return nn.Sequential(nn.Linear(shape[0], 32), nn.ReLU(), nn.Linear(32, classes))
    """
    setattr(function, _MARK, True)
    return function


def is_declared(thing: Any) -> bool:
    """Whether this very function or class says that it is pure; a class does not inherit it."""
    attributes = getattr(thing, "__dict__", {})
    return attributes.get(_MARK) is True or (isinstance(thing, type) and attributes.get("pure") is True)


def is_known(module: str) -> bool:
    """Whether code of a module of this name is fedtune's or PyTorch's."""
    return module.split(".")[0] in _PACKAGES
