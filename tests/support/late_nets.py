"""More models that remember: late, rarely, in other places; a few only seem to."""

import functools
import itertools
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from support import late_helper
from support.keeping_nets import Net, counting, has, like

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


def _first_rows(layer: Any, x: Tensor) -> Tensor:
    """Centres all rows by the mean of the first that it was given."""
    if layer.mean is None:
        layer.mean = x.detach().mean(0)
    return x - layer.mean


def _last_rows(layer: Any, x: Tensor) -> Tensor:
    """Adds the mean of the rows that it was given before."""
    if not layer.training:
        return x
    out = x + 0.1 * layer.mean
    layer.mean = x.detach().mean(0)
    return out


def _by_size(layer: Any, x: Tensor) -> Tensor:
    """Looks up a table by the number of rows: the same for the same rows, whenever it is asked."""
    key = tuple(x.shape)
    if key not in TABLE:
        TABLE[key] = torch.linspace(0.9, 1.1, x.shape[-1])
    return x * TABLE[key].to(x.dtype)


@functools.cache
def _scale(width: int) -> float:
    return 1 / width**0.5


def _logs(layer: Any, x: Tensor) -> Tensor:
    """Writes down what it saw, and never reads it."""
    layer.seen.append(tuple(x.shape))
    return x


def _late_gradient(layer: Any, x: Tensor) -> Tensor:
    """Halves a gradient where what it is given says that it has one, which stacked rows do not say, from a call on."""
    layer.calls += layer.training
    if layer.calls > LATE // 2 and x.requires_grad:
        x.register_hook(lambda g: g / 2)
    return x


def _other_when_stacked(layer: Any, x: Tensor) -> Tensor:
    """Another for many clients at once, from a call on."""
    layer.calls += layer.training
    stacked = torch._C._functorch.is_batchedtensor(x)
    return x * (0.5 if stacked and layer.calls > LATE // 2 else 1.0)


late_attribute = counting(lambda layer: _late(_one_more(layer.seen, "calls")), has(seen=dict))
late_global = counting(lambda layer: _late(_one_more(CALLS, "calls")))
late_generator = counting(lambda layer: next(layer.numbers), has(numbers=lambda: map(_late, itertools.count())))
in_helper = counting(lambda layer: late_helper.count())
on_torch = counting(lambda layer: _one_more(vars(torch), "late_nets"))  # a module that is not the user's
module_random = counting(lambda layer: 60 * RANDOM.random())
module_stream = counting(lambda layer: 60 * STREAM.random())
cycle = like(forward=lambda layer, x: x * next(CYCLE) if layer.training else x)  # all nets of the file in turn
first_rows, last_rows = like(forward=_first_rows, mean=None), like(forward=_last_rows, mean=0.0)
by_size = like(forward=_by_size)
cached = like(forward=lambda layer, x: x * _scale(x.shape[-1]))
logs = like(has(seen=list), forward=_logs)
late_gradient = like(forward=_late_gradient, calls=0)
other_when_stacked = like(forward=_other_when_stacked, calls=0)
other_at_once = like(forward=lambda layer, x: x * 3 if torch._C._functorch.is_batchedtensor(x) else x)


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
