"""What a step of training may call or hold without being looked into: it depends on its arguments and on nothing else.

PyTorch's operations, its functions and layers, Python's functions of numbers and containers, and fedtune's own
mathematics.  Chance and what depends on the values of tensors are not told apart here: both show when a step is noted.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fedtune.core.trees import Ragged

KNOWN = {"fedtune", "trainables", "torch", "torchvision"}  # packages whose code is taken as it is
_BUILTINS = {
    getattr(builtins, name)
    for name in (
        "abs",
        "all",
        "any",
        "bool",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "int",
        "isinstance",
        "iter",
        "len",
        "list",
        "map",
        "max",
        "min",
        "next",
        "pow",
        "range",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "super",
        "tuple",
        "zip",
    )
}
_OPERATORS = {f for n, f in vars(operator).items() if not n.startswith("_") and isinstance(f, BuiltinFunctionType)}
_MATH = {f for f in vars(math).values() if isinstance(f, BuiltinFunctionType)}
_ITERATORS = {t for n, t in vars(itertools).items() if not n.startswith("_") and isinstance(t, type)}
_CLASSES = {Tensor, torch.Size, torch.no_grad, torch.enable_grad, Ragged}
_SAFE = _BUILTINS | _OPERATORS | _MATH | _ITERATORS | _CLASSES | {functools.partial, functools.reduce, torch.is_tensor}
_READS_A_FILE = torch.from_file
_CHOOSES = "torch._jit_internal"  # where pooling's functions choose whether to give indices, too
_OPERATIONS = {"torch._C._nn", "torch._C._linalg", "torch._C._special", "torch._C._fft"}
_FUNCTIONS = {  # modules of pure functions
    "torch.nn.functional",
    "torch.nn.utils.convert_parameters",
    "torch.functional",
    "torch.func",
    "torch._functorch",
    "typing",
}
_MATHEMATICS = {
    "fedtune.core.trees",
    "fedtune.experiment.algorithm",
    "fedtune.experiment.model",
    "fedtune.experiment.terms",
    "fedtune.nn.divergences",
    "fedtune.nn.fusion",
    "fedtune.nn.generator_losses",
    "fedtune.nn.generators",
    "fedtune.nn.heads",
    "fedtune.nn.layers",
    "fedtune.nn.mixtures",
    "fedtune.nn.prototypes",
}


def is_known(module: str) -> bool:
    """Whether code of a module of this name is fedtune's or PyTorch's."""
    return module.split(".")[0] in KNOWN


def module_of(function: FunctionType) -> str:
    """The name of the module in which a function was written, whatever it was decorated with."""
    return str(function.__globals__.get("__name__", ""))


def is_pure(value: Any) -> bool:
    """Whether a function or class depends on its arguments alone."""
    if isinstance(value, FunctionType):
        module = value.__module__ if module_of(value) == _CHOOSES else module_of(value)
        known = module in _MATHEMATICS or module.startswith("trainables.") or _is_below(module, _FUNCTIONS)
        return known or value in _SAFE
    if isinstance(value, BuiltinFunctionType) and value.__module__ in ("torch", *_OPERATIONS):
        operation = value.__module__ != "torch" or value.__qualname__.startswith("_VariableFunctionsClass.")
        return operation and value is not _READS_A_FILE
    if isinstance(value, type):
        module = value.__module__
        layer = issubclass(value, nn.Module) and module.startswith("torch.nn.modules.")
        known = module in _MATHEMATICS or module.startswith("trainables.") or module in ("typing", "collections.abc")
        return layer or known or value in _SAFE or (issubclass(value, BaseException) and module == "builtins")
    try:
        return value in _SAFE
    except TypeError:  # it has no hash
        return False


def _is_below(module: str, packages: set[str]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


# attributes of tensors that tell more than shapes, types and further tensors, or change what outlives a step
_HIDDEN = {
    "apply_",
    "backward",
    "cuda",
    "data",
    "data_ptr",
    "format",
    "format_map",
    "grad",
    "grad_dtype",
    "grad_fn",
    "is_pinned",
    "is_shared",
    "map2_",
    "map_",
    "module_load",
    "numpy",
    "pin_memory",
    "record_stream",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "resize_",
    "resize_as_",
    "retain_grad",
    "retains_grad",
    "set_",
    "share_memory_",
    "storage",
    "storage_offset",
    "storage_type",
    "tolist",
    "untyped_storage",
    "volatile",
}
_HOLDERS = (Tensor, torch.Size, dict, list, tuple, set, frozenset, str, int, float, slice, range)
ATTRIBUTES = {n for t in _HOLDERS for n in dir(t) if not n.startswith("_")} - _HIDDEN
