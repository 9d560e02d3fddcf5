"""More models that remember: late, rarely, in other places; a few only seem to."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from support import late_helper
from support.keeping_nets import Layer, Net, counting, has, of

LATE = 400  # calls
CALLS: dict[str, int] = {}
TABLE: dict[tuple[int, ...], Tensor] = {}
RANDOM = random.Random(0)
STREAM = np.random.default_rng(0)
CYCLE = itertools.cycle([0.5, 1.0, 1.0])


def _late(calls: int) -> int:
    """Another from the 400th call on: as early as late."""
    return 0 if calls < LATE else 60


def _one_more(owner: dict[str, Any], name: str) -> int:
    owner[name] = owner.get(name, 0) + 1
    return int(owner[name])


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


class OtherAtOnce(Layer):
    """Another for many clients at once, from the first call on."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        return x * 3 if torch._C._functorch.is_batchedtensor(x) else x


class OtherWhenStacked(Layer):
    """Another for many clients at once, once the rows it saw make a large sum."""

    total = 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        self.total += self.training
        stacked = torch._C._functorch.is_batchedtensor(x)
        return x * (0.5 if stacked and self.total > LATE // 2 else 1.0)


late_attribute = counting(lambda layer: _late(_one_more(layer.seen, "calls")), has(seen=dict))
late_global = counting(lambda layer: _late(_one_more(CALLS, "calls")))
late_generator = counting(lambda layer: next(layer.numbers), has(numbers=lambda: map(_late, itertools.count())))
in_helper = counting(lambda layer: late_helper.count())
on_torch = counting(lambda layer: _one_more(vars(torch), "late_nets"))  # a module that is not the user's
module_random = counting(lambda layer: 60 * RANDOM.random())
module_stream = counting(lambda layer: 60 * STREAM.random())
cycle, first_rows, last_rows, by_size, cached, logs = map(of, (Cycle, FirstRows, LastRows, BySize, Cached, Logs))


late_gradient, other_when_stacked, other_at_once = map(of, (LateGradient, OtherWhenStacked, OtherAtOnce))


def explodes(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Gives infinities from the 26th call on: a round of ten steps has none, the third one has."""
    net, calls = Net(nn.ReLU(), classes), itertools.count(1)
    plain = net.head.forward
    net.head.forward = lambda z: plain(z) * (torch.inf if net.training and next(calls) > 25 else 1.0)  # type: ignore[method-assign]
    return net


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
