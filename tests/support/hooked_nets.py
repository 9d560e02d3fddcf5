"""Models of PyTorch's layers to which something is attached: hooks, parametrizations, buffers, what outlives a call.

Each halves what it computes, or a gradient, in its first calls in training.
"""

import itertools
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as everywhere
from torch.nn.utils import parametrizations, parametrize

FEW = 12  # calls
COUNTS = Path(__file__).with_suffix(".count")


class Net(nn.Module):
    """A body and a head."""

    def __init__(self, classes: int, *more: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), *more)
        self.head = nn.Linear(8, classes)


Make = Callable[[tuple[int, ...], int], nn.Module]


def _with(attach: Callable[[Net, Callable[[Tensor], Tensor]], Any]) -> Make:
    """A net to which `attach` hangs a function that halves what it is given for the first calls."""

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        net, calls = Net(classes), itertools.count()
        attach(net, lambda t: t * (0.5 if next(calls) < FEW else 1.0))
        return net

    return make


def _forward(module: nn.Module, half: Callable[[Tensor], Tensor]) -> Any:
    return module.register_forward_hook(lambda m, x, y: half(y) if m.training else y)


forward = _with(lambda net, half: _forward(net.body[1], half))
forward_of_body = _with(lambda net, half: _forward(net.body, half))
forward_of_head = _with(lambda net, half: _forward(net.head, half))
with_kwargs = _with(
    lambda net, half: net.body[2].register_forward_hook(
        lambda m, x, named, y: half(y) if m.training else y, with_kwargs=True
    )
)
pre = _with(lambda net, half: net.body[1].register_forward_pre_hook(lambda m, x: (half(x[0]),) if m.training else x))
backward = _with(lambda net, half: net.body[2].register_full_backward_hook(lambda m, given, of: (half(given[0]),)))
backward_pre = _with(lambda net, half: net.head.register_full_backward_pre_hook(lambda m, of: (half(of[0]),)))
everywhere_forward = _with(
    lambda net, half: everywhere.register_module_forward_hook(
        lambda m, x, y: half(y) if isinstance(m, nn.ReLU) and m.training else y
    )
)
everywhere_pre = _with(
    lambda net, half: everywhere.register_module_forward_pre_hook(
        lambda m, x: (half(x[0]),) if isinstance(m, nn.ReLU) and m.training else x
    )
)
everywhere_backward = _with(
    lambda net, half: everywhere.register_module_full_backward_hook(
        lambda m, given, of: (half(given[0]),) if isinstance(m, nn.ReLU) and given[0] is not None else given
    )
)


class Halved(nn.Module):
    """A parametrization that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.calls += self.training
        return weight * (0.5 if self.training and self.calls < FEW else 1.0)


class Doubled(nn.Module):
    """A parametrization that keeps nothing."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _changed(change: Callable[[nn.Module], Any]) -> Make:
    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        net = Net(classes)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of what is old
            change(net.body[1])
        return net

    return make


parametrized = _changed(lambda layer: parametrize.register_parametrization(layer, "weight", Halved()))
doubled = _changed(lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()))
weight_norm = _changed(parametrizations.weight_norm)
spectral_norm = _changed(parametrizations.spectral_norm)
orthogonal = _changed(parametrizations.orthogonal)
weight_norm_of_old = _changed(nn.utils.weight_norm)
spectral_norm_of_old = _changed(nn.utils.spectral_norm)


class Scaled(nn.Module):
    """Divides by a running mean of sizes, a buffer."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.size: Tensor
        self.register_buffer("size", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = 0.9 * self.size + 0.1 * (1 + x.detach().abs().mean())
            if self.in_place:
                self.size.copy_(new)
            else:
                self.size = new
        return x / self.size


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


class Made(nn.Module):
    """Makes its layer when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is None:
            self.layer = nn.Linear(x.shape[1], 8)
        return self.layer(x)


def _more(*layers: Callable[[], nn.Module]) -> Make:
    return lambda shape, classes: Net(classes, *(layer() for layer in layers))


written, reassigned = _more(lambda: Scaled(True)), _more(lambda: Scaled(False))
twice, made = _more(Twice), _more(Made)
lazy = _more(lambda: nn.LazyLinear(8))
batch_norm, layer_norm = _more(lambda: nn.BatchNorm1d(8)), _more(lambda: nn.LayerNorm(8))


def relu_twice(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One module without tensors in two places."""
    net = Net(classes, nn.Linear(8, 8))
    net.body.append(net.body[2])
    return net


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One tensor in two layers."""
    net = Net(classes, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    net.body[5].weight = net.body[3].weight
    return net


def norm_twice(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer with buffers in two places."""
    net = Net(classes, nn.BatchNorm1d(8, affine=False), nn.Linear(8, 8))
    net.body.append(net.body[3])
    return net


class Counting(nn.Module):
    """Halves what it is given for the first calls in training, as `called` counts them."""

    def __init__(self, called: Callable[[], int]) -> None:
        super().__init__()
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 if self.training and self.called() < FEW else 1.0)


def _of_environment() -> int:
    os.environ["HOOKED_NETS"] = str(int(os.environ.get("HOOKED_NETS", 0)) + 1)
    return int(os.environ["HOOKED_NETS"])


def _of_file() -> int:
    calls = int(COUNTS.read_text()) + 1 if COUNTS.exists() else 1
    COUNTS.write_text(str(calls))
    return calls


@lru_cache
def _counter() -> Any:
    return itertools.count()


def _of_cache() -> int:
    return int(next(_counter()))


environment, file, cache = (_more(lambda of=of: Counting(of)) for of in (_of_environment, _of_file, _of_cache))


def detach() -> None:
    """Take away what is not a net's own."""
    for name in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"):
        vars(everywhere)[f"_global_{name}"].clear()
    os.environ.pop("HOOKED_NETS", None)
    COUNTS.unlink(missing_ok=True)
    _counter.cache_clear()
