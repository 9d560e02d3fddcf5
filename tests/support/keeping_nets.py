"""Models that keep something from one call to the next where no client has it as its own, each in another way."""

import collections
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CALLS = [0]


class Layer(nn.Module):
    """Halves what it is given for as long as it has not been called often."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """What it has."""

    def counted(self) -> Any:
        """How often it was called."""
        return 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        n = self.counted()
        return x * (torch.where(n < 30, 0.5, 1.0) if isinstance(n, Tensor) else 0.5 if n < 30 else 1.0)


class Net(nn.Module):
    """A body with such a layer, and a head."""

    def __init__(self, layer: nn.Module, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer)
        self.head = nn.Linear(8, classes)


class Elsewhere:
    """A class of the file that is none of the net's, and whose instances can be called."""

    calls = 0

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        self.n += 1
        return self.n


class Slots:
    """A count."""

    __slots__ = ("calls",)


COUNT = Elsewhere()


def like(begin: Callable[[Any], Any] = lambda layer: None, **has: Any) -> Any:
    """A model of one layer that begins like this, and whose class has these attributes and methods."""
    kind = type("Own", (Layer,), {"begin": begin} | has)
    return lambda shape, classes: Net(kind(), classes)


def counting(counted: Callable[[Any], Any], begin: Callable[[Any], Any] = lambda layer: None, **has: Any) -> Any:
    """A model whose layer counts like this."""
    return like(begin, counted=counted, **has)


def has(**values: Any) -> Callable[[Any], None]:
    """Begins with these attributes, each made by its function."""
    return lambda layer: [setattr(layer, name, make()) for name, make in values.items()]  # type: ignore[return-value]


def _add_one(owner: Any) -> Any:
    owner.calls += 1
    return owner.calls


def _add_one_to(seen: Any) -> Any:
    seen[0] += 1
    return seen[0]


def _length(seen: list[int] = []) -> int:  # noqa: B006
    seen.append(1)
    return len(seen)


def _numbers() -> Iterator[int]:
    n = 0
    while True:
        n += 1
        yield n


def _begin_closure(layer: Any) -> None:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    layer.count = count


def _begin_slots(layer: Any) -> None:
    slots = Slots()
    slots.calls = 0
    layer.far = {"a": {"b": {"c": {"d": [[slots]]}}}}


def _dropped(layer: Any, x: Tensor) -> Tensor:
    if layer.training:
        layer.drop.p = min(0.9, layer.drop.p + 0.01)
    return layer.drop(x)


def _halved_gradient(layer: Any, x: Tensor) -> Tensor:
    """By a hook of what it is given, where that says that it has a gradient."""
    if x.requires_grad:
        x.register_hook(lambda g: g / 2)
    return x


def _penalty(layer: Any, x: Tensor) -> Tensor:
    """A gradient of its own in training, where what it is given says that it has one."""
    if not (layer.training and x.requires_grad):
        return x
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return x + 0.1 * g


def _flips(layer: Any, x: Tensor) -> Tensor:
    """Another at every second call, and then as it was."""
    layer.way = "b" if layer.way == "a" else "a"
    return x * (0.5 if layer.training and layer.way == "a" else 1.0)


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


attribute = counting(_add_one, has(calls=int))
numpy_count = counting(lambda layer: int(_add_one(layer)), has(calls=lambda: np.int64(0)))
constant = counting(_add_one, lambda layer: layer.register_buffer("calls", torch.zeros(()), persistent=False))
iterator = counting(lambda layer: next(layer.numbers), has(numbers=itertools.count))
generator = counting(lambda layer: next(layer.numbers), has(numbers=_numbers))
deque = counting(lambda layer: _add_one_to(layer.seen), has(seen=lambda: collections.deque([0])))
closure = counting(lambda layer: layer.count(), _begin_closure)
of_slots = counting(lambda layer: _add_one(layer.far["a"]["b"]["c"]["d"][0][0]), _begin_slots)
own_random = counting(lambda layer: 60 * layer.generator.random(), has(generator=lambda: random.Random(0)))
python_random = counting(lambda layer: 60 * random.random())
numpy_random = counting(lambda layer: 60 * float(np.random.rand()))
global_ = counting(lambda layer: _add_one_to(CALLS))
default = counting(lambda layer: _length())
other_class = counting(lambda layer: _add_one(Elsewhere))
called = counting(lambda layer: COUNT())
of_class = counting(lambda layer: _add_one(type(layer)), calls=0)
plain = like()
dropped = like(has(drop=lambda: nn.Dropout(0.1)), forward=_dropped)
tensor_hook, penalty = like(forward=_halved_gradient), like(forward=_penalty)
flips = like(forward=_flips, way="a")
