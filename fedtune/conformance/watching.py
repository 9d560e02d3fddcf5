"""The arguments and results of an algorithm's methods in a run, and whether they changed their arguments."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtune.core.trees import tree_map
from fedtune.experiment.algorithm import Algorithm, Model, Phase

HOOKS = [n for n, f in vars(Algorithm).items() if callable(f) and not n.startswith("_")]
NOT_PER_ROUND = {"build", "init", "keep", "idle", "phases"}


class Message(NamedTuple):
    """One exchange: a message for each of these clients."""

    t: int
    ids: list[int]
    content: dict[str, Any]  # copies


class MessageLog:
    """The messages of a run, and what its methods changed in place."""

    def __init__(self) -> None:
        """No messages yet."""
        self.down: list[Message] = []
        self.up: list[Message] = []
        self.changes: list[tuple[str, str]] = []  # a method and the argument that it changed
        self.buffers: frozenset[str] = frozenset()  # tensors that training may change in place: BatchNorm's statistics
        self.depth, self.training = 0, False
        self.in_place = False  # whether to look for changes: not under vmap, whose tensors have no versions

    def call(self, hook: str, method: Callable[..., Any], args: tuple[Any, ...], train: bool = False) -> Any:
        """Call a method; record what it sends and which arguments it changes."""
        outer, self.training = self.training, train or self.training
        own = self.buffers if self.training else ()
        held = [part for arg in args for part in _holders(arg)] if self.in_place else []
        versions = [(name, part, _version(part)) for name, part in held if name.removeprefix("m.") not in own]
        self.depth += 1
        try:
            out = method(*args)
        finally:
            self.depth, self.training = self.depth - 1, outer
        for name, holder, version in versions:
            if _version(holder) != version:
                self.changes.append((hook, name))
        if not self.depth:
            if hook == "broadcast":
                _, ids, task = args[-3:]
                self.down.append(Message(task.t, ids.tolist(), _copied(out)))
            elif hook == "aggregate":
                _, up, task = args[-3:]
                uploads = {n: tree for n, tree in up.items() if n != "ids"}  # the server knows the senders
                self.up.append(Message(task.t, up["ids"].tolist(), _copied(uploads)))
        return out


def watched(cls: type[Algorithm], tape: MessageLog) -> type[Algorithm]:
    """A subclass of the algorithm that records every method call on the tape, which somebody else must hold."""
    log = weakref.ref(tape)  # classes stay in caches: a process that checks many would keep all messages

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(cls, name)

        def call(self: Algorithm, *args: Any) -> Any:
            messages = log()
            assert messages
            out = messages.call(name, lambda *arguments: method(self, *arguments), args)
            if name != "round":
                return out
            return tuple(_recorded_phase(a, messages) if isinstance(a, Phase) else a for a in out)

        return call

    always_recorded = {"round", "broadcast", "aggregate", "deployed"}
    mine = [n for n in HOOKS if n in always_recorded or getattr(cls, n) is not getattr(Algorithm, n)]
    members = {n: recorded(n) for n in mine if n not in NOT_PER_ROUND}
    return type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__doc__": cls.__doc__})


def _recorded_phase(phase: Phase, tape: MessageLog) -> Phase:
    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__name__", "loss")
        return lambda *args: tape.call(name, function, args, train=True)

    after = phase.after and phase.after._replace(loss=recorded(phase.after.loss))
    return phase._replace(loss=recorded(phase.loss), pool=phase.pool and recorded(phase.pool), after=after)


def _holders(arg: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and dicts in an argument, by their paths.  Called for every method call."""
    if isinstance(arg, Tensor | dict):
        yield name or f"a {'tensor' if isinstance(arg, Tensor) else 'dict'}", arg
    if isinstance(arg, Model):
        yield from _holders(arg.tensors, "m")
    elif isinstance(arg, dict | tuple):
        keys = arg if isinstance(arg, dict) else getattr(arg, "_fields", range(len(arg)))
        for key, part in zip(keys, arg.values() if isinstance(arg, dict) else arg, strict=True):
            yield from _holders(part, f"{name}.{key}" if name else str(key))


def _version(holder: Any) -> Any:
    return holder._version if isinstance(holder, Tensor) else {key: id(value) for key, value in holder.items()}


def _copied(message: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, message)
    return copy


def move_streams() -> None:
    """Draw from every random stream of the process, so that code that uses them gets other numbers."""
    torch.rand(7), np.random.rand(7), random.random()
