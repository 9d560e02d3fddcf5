"""More models that remember: late, rarely, in other places; a few only seem to."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from support import late_helper
from support.keeping_nets import Layer, Net

LATE = 400  # calls
CALLS: list[int] = []
TABLE: dict[tuple[int, ...], Tensor] = {}
RANDOM = random.Random(0)
STREAM = np.random.default_rng(0)
CYCLE = itertools.cycle([0.5, 1.0, 1.0])


class LateAttribute(Layer):
    """Another from its 400th call on."""

    calls = 0

    def counted(self) -> Any:
        """As early as late."""
        self.calls += 1
        return 0 if self.calls < LATE else 60


class LateGlobal(Layer):
    """Another from the 400th call on, of all nets of the file."""

    def counted(self) -> Any:
        """As early as late."""
        CALLS.append(1)
        return 0 if len(CALLS) < LATE else 60


class LateGenerator(Layer):
    """Another from the 400th number of a generator on."""

    def begin(self) -> None:
        """From 0."""
        self.numbers = (0 if n < LATE else 60 for n in itertools.count())

    def counted(self) -> Any:
        """The next number."""
        return next(self.numbers)


class InHelper(Layer):
    """Counts in a module beside its file."""

    def counted(self) -> Any:
        """How often it was called."""
        return late_helper.count()


class OnTorch(Layer):
    """Counts in an attribute of a module that is not the user's."""

    def counted(self) -> Any:
        """How often it was called."""
        vars(torch)["late_nets"] = vars(torch).get("late_nets", 0) + 1
        return vars(torch)["late_nets"]


class ModuleRandom(Layer):
    """Draws from a generator of its file."""

    def counted(self) -> Any:
        """A number."""
        return 60 * RANDOM.random()


class ModuleStream(Layer):
    """Draws from a generator of NumPy's that is its file's."""

    def counted(self) -> Any:
        """A number."""
        return 60 * STREAM.random()


class Cycle(Layer):
    """Halves at every third call of all nets of the file."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        return x * next(CYCLE) if self.training else x


class FirstRows(Layer):
    """Centres all rows by the mean of the first that it was given."""

    def begin(self) -> None:
        """Of none yet."""
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if self.mean is None:
            self.mean = x.detach().mean(0)
        return x - self.mean


class LastRows(Layer):
    """Adds the mean of the rows that it was given before."""

    def begin(self) -> None:
        """Of none yet."""
        self.mean: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if not self.training:
            return x
        out = x + 0.1 * self.mean
        self.mean = x.detach().mean(0)
        return out


class BySize(Layer):
    """Looks up a table by the number of rows: the same for the same rows, whenever it is asked."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        key = tuple(x.shape)
        if key not in TABLE:
            TABLE[key] = torch.linspace(0.9, 1.1, x.shape[-1])
        return x * TABLE[key].to(x.dtype)


@functools.cache
def _scale(width: int) -> float:
    return 1 / width**0.5


class Cached(Layer):
    """Computes a constant once."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        return x * _scale(x.shape[-1])


class Logs(Layer):
    """Writes down what it saw, and never reads it."""

    def begin(self) -> None:
        """Of none yet."""
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        self.seen.append(tuple(x.shape))
        return x


class LateGradient(Layer):
    """Halves a gradient where what it is given says that it has one, which stacked rows do not say, from a call on."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        self.calls += self.training
        if self.calls > LATE // 2 and x.requires_grad:
            x.register_hook(lambda g: g / 2)
        return x


class OtherWhenStacked(Layer):
    """Another for many clients at once, once the rows it saw make a large sum."""

    total = 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        self.total += self.training
        stacked = torch._C._functorch.is_batchedtensor(x)
        return x * (0.5 if stacked and self.total > LATE // 2 else 1.0)


def _net(layer: Callable[[], nn.Module]) -> Callable[..., nn.Module]:
    return lambda shape, classes: Net(layer(), classes)


late_attribute, late_global, late_generator = map(_net, (LateAttribute, LateGlobal, LateGenerator))
in_helper, on_torch, module_random, module_stream = map(_net, (InHelper, OnTorch, ModuleRandom, ModuleStream))
cycle, first_rows, last_rows, by_size, cached, logs = map(_net, (Cycle, FirstRows, LastRows, BySize, Cached, Logs))


late_gradient, other_when_stacked = map(_net, (LateGradient, OtherWhenStacked))


def late_hook(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A hook halves the features from the 400th call on."""
    net, calls = Net(nn.ReLU(), classes), itertools.count()
    net.body[1].register_forward_hook(lambda m, x, y: y / 2 if m.training and next(calls) >= LATE else y)
    return net


def late_closure(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A function around the head's forward counts."""
    net, calls = Net(nn.ReLU(), classes), itertools.count()
    plain = net.head.forward
    net.head.forward = lambda z: plain(z) * (2.0 if net.training and next(calls) >= LATE else 1.0)  # type: ignore[method-assign]
    return net
