"""What an algorithm could remember outside the state: values of its classes, modules, functions and nets."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtune.core.pure_functions import is_known
from fedtune.federated import places

DEEP = 5  # so far are objects looked into


class Streams(NamedTuple):
    """The states of the random streams that belong to the process."""

    torch: Any
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Streams:
        """As they are."""
        kind, keys, *rest = np.random.get_state()
        return cls(torch.get_rng_state().numpy().tobytes(), (np.asarray(keys).tobytes(), *rest), random.getstate())

    def moved(self, later: Streams) -> list[str]:
        """Those that somebody drew from until later."""
        return [n for n in self._fields if getattr(self, n) != getattr(later, n)]


def belongings(cls: type) -> dict[str, str]:
    """A fingerprint of every value that outlives a call, by `Class.name`, `module.name` or `function.name`."""
    found: dict[str, str] = {}
    for owner in places.own_classes(cls):
        for name, value in vars(owner).items():
            if isinstance(value, FunctionType):
                found |= _of_function(f"{owner.__name__}.{name}", value)
            elif not name.startswith("__") and not callable(value):
                found[f"{owner.__name__}.{name}"] = fingerprint(value)
    for module in _modules(cls):
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == module.__name__:
                found |= _of_function(name, value)
            elif not name.startswith("__") and not callable(value) and not isinstance(value, ModuleType):
                found[name] = fingerprint(value)
    return found


def of_net(net: nn.Module) -> dict[str, str]:
    """A fingerprint of everything in a net's modules, their classes and files but a client's tensors, and modes."""
    tensors = ("_parameters", "_buffers", "_modules", "training")
    found: dict[str, str] = {}
    for path, module in net.named_modules():
        torchs = type(module).__module__.startswith("torch.")  # it knows what it does: nn.LSTM's _flat_weights
        held = {n: v for n, v in vars(module).items() if n not in tensors and not (torchs and n.startswith("_"))}
        held |= {n: module._buffers[n] for n in module._non_persistent_buffers_set}  # which no client has as its own
        found |= {f"{path}.{name}".strip("."): fingerprint(value) for name, value in held.items()}
    for cls in {type(m) for m in net.modules() if not is_known(type(m).__module__)}:
        found |= belongings(cls)
    return found


def _modules(cls: type) -> Iterator[ModuleType]:
    """The modules of a class's files, and those imported from their folders, but not fedtune's own packages."""
    own = places.files_of(cls)
    folders = {os.path.dirname(file) for file in own}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name in own.values() or (file and os.path.dirname(file) in folders and name.split(".")[0] != "trainables"):
            yield module


def _of_function(name: str, function: FunctionType) -> dict[str, str]:
    kept = {f"{name}.{n}": v for n, v in vars(function).items() if n != "__wrapped__"}
    kept |= {f"{name}, default {i + 1}": v for i, v in enumerate(function.__defaults__ or ())}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    kept |= {f"{name}, variable {n}": c.cell_contents for n, c in cells if n != "__class__" and _filled(c)}
    return {n: fingerprint(v) for n, v in kept.items() if not callable(v)}


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _held(function: FunctionType) -> list[Any]:
    """What a function holds from one call to the next."""
    cells = [c.cell_contents for c in function.__closure__ or () if _filled(c)]
    return [*cells, *(function.__defaults__ or ()), *vars(function).values()]


def fingerprint(value: Any, deep: int = DEEP) -> str:
    """The same text for the same value."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return f"tensor {tuple(value.shape)} {hashlib.blake2b(value.numpy().tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}"
    if isinstance(value, FunctionType):
        return f"a function {fingerprint(_held(value), deep - 1)}" if deep > 0 else "a function"
    if isinstance(value, random.Random | torch.Generator | np.random.Generator):
        return f"{type(value).__name__} {hashlib.blake2b(pickle.dumps(value), digest_size=8).hexdigest()}"
    if type(value).__module__ == "itertools":
        return repr(value)
    if deep <= 0 or isinstance(value, type | ModuleType) or (callable(value) and not hasattr(value, "__dict__")):
        return type(value).__name__
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {fingerprint(v, deep - 1)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{type(value).__name__}({', '.join(fingerprint(v, deep - 1) for v in value)})"
    if hasattr(value, "__dict__"):
        return f"{type(value).__name__}{fingerprint(vars(value), deep - 1)}"
    return repr(value) if isinstance(value, int | float | str | bytes | bool | None) else type(value).__name__
