"""Models that keep something from one call to the next where no client has it as its own, each in another way."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CALLS = [0]


class Layer(nn.Module):
    """Halves what it is given for as long as it has not been called often."""

    def __init__(self) -> None:
        """Nothing was counted."""
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """What it has."""

    def counted(self) -> Any:
        """How often it was called."""
        return 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if not self.training:
            return x
        n = self.counted()
        return x * (torch.where(n < 30, 0.5, 1.0) if isinstance(n, Tensor) else 0.5 if n < 30 else 1.0)


class Attribute(Layer):
    """Counts in itself."""

    calls = 0

    def counted(self) -> Any:
        """How often it was called."""
        self.calls += 1
        return self.calls


class OfClass(Layer):
    """Counts in its class."""

    calls = 0

    def counted(self) -> Any:
        """How often it was called."""
        OfClass.calls += 1
        return OfClass.calls


class Global(Layer):
    """Counts in its file."""

    def counted(self) -> Any:
        """How often it was called."""
        CALLS[0] += 1
        return CALLS[0]


class Default(Layer):
    """Counts in a default argument."""

    def counted(self, seen: list[int] = []) -> Any:  # noqa: B006
        """How often it was called."""
        seen.append(1)
        return len(seen)


class Iterator(Layer):
    """Counts in an iterator."""

    def begin(self) -> None:
        """From 0."""
        self.numbers = itertools.count()

    def counted(self) -> Any:
        """How often it was called."""
        return next(self.numbers)


class Constant(Layer):
    """Counts in a buffer that no state_dict holds."""

    def begin(self) -> None:
        """From 0."""
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def counted(self) -> Any:
        """How often it was called."""
        self.calls += 1
        return self.calls


class Closure(Layer):
    """Counts in a variable of the function around."""

    def begin(self) -> None:
        """From 0."""
        n = 0

        def count() -> int:
            nonlocal n
            n += 1
            return n

        self.count = count

    def counted(self) -> Any:
        """How often it was called."""
        return self.count()


class Dropped(Layer):
    """Drops more from call to call."""

    def begin(self) -> None:
        """A tenth."""
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if self.training:
            self.drop.p = min(0.9, self.drop.p + 0.01)
        dropped: Tensor = self.drop(x)
        return dropped


class OwnRandom(Layer):
    """Draws from a generator of its own."""

    def begin(self) -> None:
        """From a seed."""
        self.generator = random.Random(0)

    def counted(self) -> Any:
        """A number."""
        return 60 * self.generator.random()


class PythonRandom(Layer):
    """Draws from Python's generator."""

    def counted(self) -> Any:
        """A number."""
        return 60 * random.random()


class NumpyRandom(Layer):
    """Draws from numpy's generator."""

    def counted(self) -> Any:
        """A number."""
        return 60 * float(np.random.rand())


class Deque(Layer):
    """Counts in an object that has no namespace."""

    def begin(self) -> None:
        """Nothing was counted."""
        self.seen = collections.deque([0])

    def counted(self) -> Any:
        """How often it was called."""
        self.seen[0] += 1
        return self.seen[0]


class Slots:
    """A count."""

    __slots__ = ("n",)


class OfSlots(Layer):
    """Counts in an object with slots, far inside."""

    def begin(self) -> None:
        """From 0."""
        slots = Slots()
        slots.n = 0
        self.far = {"a": {"b": {"c": {"d": [[slots]]}}}}

    def counted(self) -> Any:
        """How often it was called."""
        slots = self.far["a"]["b"]["c"]["d"][0][0]
        slots.n += 1
        return slots.n


class NumpyCount(Layer):
    """Counts in a number of NumPy's."""

    def begin(self) -> None:
        """From 0."""
        self.calls = np.int64(0)

    def counted(self) -> Any:
        """How often it was called."""
        self.calls += np.int64(1)
        return int(self.calls)


def _numbers() -> Any:
    n = 0
    while True:
        n += 1
        yield n


class Generator(Layer):
    """Counts in a generator."""

    def begin(self) -> None:
        """From 0."""
        self.numbers = _numbers()

    def counted(self) -> Any:
        """How often it was called."""
        return next(self.numbers)


class Elsewhere:
    """A class of the file that is none of the net's, and whose instances can be called."""

    calls = 0

    def __init__(self) -> None:
        """From 0."""
        self.n = 0

    def __call__(self) -> int:
        """The next number."""
        self.n += 1
        return self.n


COUNT = Elsewhere()


class OtherClass(Layer):
    """Counts in another class."""

    def counted(self) -> Any:
        """How often it was called."""
        Elsewhere.calls += 1
        return Elsewhere.calls


class Called(Layer):
    """Counts in an object of the file that can be called."""

    def counted(self) -> Any:
        """How often it was called."""
        return COUNT()


class TensorHook(Layer):
    """Halves a gradient by a hook of what it is given, where that says that it has one."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if x.requires_grad:
            x.register_hook(lambda g: g / 2)
        return x


class Penalty(Layer):
    """Adds a gradient of its own in training, where what it is given says that it has one."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        if not (self.training and x.requires_grad):
            return x
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return x + 0.1 * g


class Flips(Layer):
    """Is another at every second call, and then as it was."""

    way = "a"

    def forward(self, x: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        self.way = "b" if self.way == "a" else "a"
        return x * (0.5 if self.training and self.way == "a" else 1.0)


class Plain(Layer):
    """Keeps nothing."""


class Net(nn.Module):
    """A body with such a layer, and a head."""

    def __init__(self, layer: nn.Module, classes: int) -> None:
        """Of images of 8×8."""
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer)
        self.head = nn.Linear(8, classes)


def hooked(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A hook on a layer of PyTorch's halves the features of the first 30 calls."""
    net, calls = Net(nn.ReLU(), classes), [0]

    def hook(module: nn.Module, given: Any, found: Tensor) -> Tensor:
        calls[0] += module.training
        return found * (0.5 if module.training and calls[0] <= 30 else 1.0)

    net.body[1].register_forward_hook(hook)
    return net


def patched(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The forward of a layer of PyTorch's is another one, which counts."""
    net, calls = Net(nn.ReLU(), classes), [0]
    layer = net.body[1]
    plain = layer.forward

    def forward(x: Tensor) -> Tensor:
        calls[0] += layer.training
        return plain(x) * (0.5 if layer.training and calls[0] <= 30 else 1.0)  # type: ignore[no-any-return]

    layer.forward = forward  # type: ignore[method-assign]
    return net


def weight_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A parametrization of PyTorch's, which keeps nothing."""
    net = Net(nn.ReLU(), classes)
    nn.utils.parametrizations.weight_norm(net.body[1])
    return net


def enclosed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A class of the model's own whose method counts in the function around."""
    n = 0

    class Enclosed(Layer):
        def counted(self) -> int:
            nonlocal n
            n += 1
            return n

    return Net(Enclosed(), classes)


def enclosed_default(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same, in a default argument of a function that the method calls."""

    def count(seen: list[int] = []) -> int:  # noqa: B006
        seen.append(1)
        return len(seen)

    class Enclosed(Layer):
        def counted(self) -> int:
            return count()

    return Net(Enclosed(), classes)


def _of(kind: type[Layer]) -> Callable[[tuple[int, ...], int], nn.Module]:
    return lambda shape, classes: Net(kind(), classes)


attribute, of_class, global_, default, iterator, constant, closure, dropped = map(
    _of, (Attribute, OfClass, Global, Default, Iterator, Constant, Closure, Dropped)
)
own_random, python_random, numpy_random, plain = map(_of, (OwnRandom, PythonRandom, NumpyRandom, Plain))
deque, of_slots, numpy_count, generator, other_class, called = map(
    _of, (Deque, OfSlots, NumpyCount, Generator, OtherClass, Called)
)
tensor_hook, penalty, flips = map(_of, (TensorHook, Penalty, Flips))
