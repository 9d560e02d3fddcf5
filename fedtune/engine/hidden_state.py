"""What an algorithm could remember outside the state: values of its classes, modules, functions and nets."""

from __future__ import annotations

import builtins
import gc
import hashlib
import io
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtune.core.pure import is_known
from fedtune.nn.net import hooks_on_all
from fedtune.user_code import sources, user_errors

DEEP = 20  # so far are objects looked into
_Cached = type(lru_cache(int))
_OF_CACHE = "'s cache "


class Streams(NamedTuple):
    """The states of the random streams that belong to the process."""

    torch: Any
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Streams:
        """Their current states."""
        kind, keys, *rest = np.random.get_state()
        return cls(torch.get_rng_state().numpy().tobytes(), (np.asarray(keys).tobytes(), *rest), random.getstate())

    def moved(self, later: Streams) -> list[str]:
        """The streams from which something was drawn between two states."""
        return [n for n in self._fields if getattr(self, n) != getattr(later, n)]


class Written:
    """Records which files this thread opens for writing through Python's functions."""

    def __init__(self) -> None:
        """No file has been opened yet."""
        self.files: list[str] = []
        self.where = ""  # the line of a user's that opened the first
        self._thread = threading.get_ident()
        self._plain: list[tuple[Any, Any]] = [(builtins, builtins.open), (io, io.open), (os, os.open)]

    def __enter__(self) -> Written:
        """Start recording."""
        for owner, plain in self._plain:
            owner.open = partial(self._opened, plain)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        for owner, plain in self._plain:
            owner.open = plain

    def _opened(self, plain: Callable[..., Any], file: Any, how: Any = "r", *args: Any, **kwargs: Any) -> Any:
        how = kwargs.get("mode", kwargs.get("flags", how))
        writes = how & (os.O_WRONLY | os.O_RDWR) if isinstance(how, int) else set("wax+") & set(how)
        if writes and threading.get_ident() == self._thread and (where := user_errors.line_now()):
            self.where = self.where or where
            self.files.append(str(file))
        return plain(file, how, *args, **{n: v for n, v in kwargs.items() if n not in ("mode", "flags")})


def of_class(cls: type) -> dict[str, str]:
    """A fingerprint of every value that outlives a call, by `Class.name`, `module.name` or `function.name`.

    Where several files have something of one name, all of it is under that name.
    """
    found: dict[str, str] = {}
    # a class that a function makes is made with the net or the algorithm, and goes with it
    owners = {owner: None for owner in sources.own_classes(cls) if "<locals>" not in owner.__qualname__}
    for module in _modules(cls):
        for name, value in vars(module).items():
            if isinstance(value, type):
                owners |= {value: None} if value.__module__ == module.__name__ else {}
            elif isinstance(value, FunctionType | _Cached):
                _put(found, _of_function(name, value) if value.__module__ == module.__name__ else {})
            elif not name.startswith("__") and not isinstance(value, ModuleType):
                _put(found, {name: fingerprint(value)})
    for owner in owners:
        for name, value in vars(owner).items():
            if isinstance(value, FunctionType | _Cached):
                _put(found, _of_function(f"{owner.__name__}.{name}", value))
            elif not name.startswith("__"):
                _put(found, {f"{owner.__name__}.{name}": fingerprint(value)})
    return found


def _put(found: dict[str, str], more: dict[str, str]) -> None:
    for name, value in more.items():
        found[name] = f"{found[name]}, {value}" if name in found else value


def of_net(net: nn.Module) -> dict[str, str]:
    """A fingerprint of everything in a net's modules except the clients' tensors and the training mode."""
    tensors = ("_parameters", "_buffers", "_modules", "training", "declared")
    found: dict[str, str] = {}
    for path, module in net.named_modules():
        torchs = type(module).__module__.startswith("torch.")  # it knows what it does: nn.LSTM's _flat_weights
        held = {n: v for n, v in vars(module).items() if n not in tensors and not (torchs and n.startswith("_"))}
        held |= {n: module._buffers[n] for n in module._non_persistent_buffers_set}  # which no client has as its own
        for cls in (
            c for c in reversed(type(module).__mro__) if not is_known(c.__module__)
        ):  # what its methods enclose
            held |= {n: v for n, v in vars(cls).items() if isinstance(v, FunctionType)}
        found |= {f"{path}.{name}".strip("."): fingerprint(value) for name, value in held.items()}
    return found


def of_process(*classes: type) -> dict[str, str]:
    """A fingerprint of state that outlives a trial: in these classes and their files, the environment, global hooks."""
    pytests = "PYTEST_CURRENT_TEST"  # pytest's name of the test that runs
    found = {f"os.environ[{name!r}]": value for name, value in os.environ.items() if name != pytests}
    found["what hooks on all modules hold"] = fingerprint(hooks_on_all())
    for cls in dict.fromkeys(classes):
        if not is_known(cls.__module__):
            found |= of_class(cls)
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The names whose fingerprint has changed.  A cache that stores a result for the first time does not count."""
    names = (n for n in before.keys() | after.keys() if n in before or _OF_CACHE not in n)
    return sorted({n.split(_OF_CACHE)[0] for n in names if before.get(n) != after.get(n)})


def _modules(cls: type) -> Iterator[ModuleType]:
    """The modules of a class's files, and those imported from their folders, but not fedtune's own packages."""
    own = sources.files_of(cls)
    folders = {os.path.dirname(file) for file in own}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if name in own.values() or (file and os.path.dirname(file) in folders and not name.startswith("fedtune.")):
            yield module


def _of_function(name: str, function: Any) -> dict[str, str]:
    if isinstance(function, _Cached):
        entries = {f"{name}{_OF_CACHE}{id(function)} {id(part)}": fingerprint(part) for part in _remembered(function)}
        inner = function.__wrapped__
        return entries | (_of_function(name, inner) if isinstance(inner, FunctionType) else {})
    kept = {f"{name}.{n}": v for n, v in vars(function).items() if n != "__wrapped__"}
    kept |= {f"{name}, default {i + 1}": v for i, v in enumerate(function.__defaults__ or ())}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    kept |= {f"{name}, variable {n}": c.cell_contents for n, c in cells if n != "__class__" and _filled(c)}
    return {n: fingerprint(v) for n, v in kept.items() if not callable(v)}


def _remembered(function: Any) -> Iterator[Any]:
    """The arguments and results that a function under `lru_cache` stores."""
    for part in gc.get_referents(function):
        if type(part) is dict and "__wrapped__" not in part:
            yield from (value for value in part.values() if type(value).__name__ != "_lru_list_elem")
        elif not isinstance(part, type | dict | FunctionType):
            yield part


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _held(function: FunctionType) -> list[Any]:
    """What a function stores from one call to the next."""
    cells = [c.cell_contents for c in function.__closure__ or () if _filled(c)]
    return [*cells, *(function.__defaults__ or ()), *vars(function).values()]


def fingerprint(value: Any, deep: int = DEEP, met: dict[int, Any] | None = None) -> str:
    """A text that is equal for equal values, as far as they consist of data.

    met: the values visited so far; kept alive, so that no id is used twice.
    """
    met = {} if met is None else met
    if isinstance(value, int | float | complex | str | bytes | np.generic | None):
        return repr(value)
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {_digest(_bytes_of(value))}"
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {_digest(value.tobytes())}"
    kind = type(value).__name__
    if deep <= 0 or id(value) in met or isinstance(value, type | ModuleType) or type(value).__module__ in _CACHES:
        return kind
    met[id(value)] = value
    return f"{kind} {_parts_of(value, lambda part: fingerprint(part, deep - 1, met))}"


_CACHES = ("functools", "logging")  # what these remember changes nothing; a partial is one of its function


def _parts_of(value: Any, of: Callable[[Any], str]) -> str:
    """The fingerprints of what a value consists of."""
    if isinstance(value, FunctionType):
        return of(_held(value))
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return "at its end" if frame is None else f"{frame.f_lasti} {of(frame.f_locals)}"
    of_pandas = type(value).__module__.partition(".")[0] == "pandas"
    unseen = _MODE if isinstance(value, nn.Module) else _LOOKED_UP if of_pandas else ""
    said = [f"{n!r}: {of(v)}" for n, v in getattr(value, "__dict__", {}).items() if n != unseen]
    if isinstance(value, dict):
        said += [f"{k!r}: {of(v)}" for k, v in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        said += map(of, value)
    elif isinstance(value, MethodType):
        said += map(of, (value.__self__, value.__func__))
    elif not said or type(value).__reduce__ is not object.__reduce__:
        said += map(of, _given(_reduced(value)) if of_pandas else _reduced(value))
    return ", ".join(said)


_MODE = "training"
_LOOKED_UP = "_cache"  # what an index has worked out from its values, when it was first asked


def _given(saved: Any) -> Any:
    """What pickle would save of an object of pandas, without what it has looked up."""
    if isinstance(saved, dict):
        return {name: _given(part) for name, part in saved.items() if name != _LOOKED_UP}
    if isinstance(saved, list | tuple):
        return [_given(part) for part in saved if not (isinstance(part, dict) and {*part} == {_LOOKED_UP})]
    return saved


def _reduced(value: Any) -> list[Any]:
    """What pickle would save of an object that has more than a namespace: an iterator, a deque, an object with
    slots.
    """
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            saved = value.__reduce_ex__(4)
    except Exception:  # whatever cannot be saved, as a lock
        return []
    if isinstance(saved, str):
        return [saved]
    _, arguments, *state = saved
    return [arguments, *state[:1], *([*items] for items in state[1:3] if items is not None)]


def _bytes_of(t: Tensor) -> bytes:
    if t.is_meta or t.layout is not torch.strided:
        return b""
    numbers: bytes = t.detach().cpu().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy().tobytes()
    return numbers


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
