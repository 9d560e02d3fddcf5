"""Layers that run fast over a stack of clients on a CPU; for a single client each is PyTorch's own operation.

Inside `torch.func.vmap`, with an input that has the client axis, each is the same computation in a cheaper memory
order.  Convolutions need no change: vmap turns K of them into one grouped convolution, which oneDNN runs fastest if

    the batch is stored as [B, H, W, K, C]            `stacked_layout`, else the convolution copies
    pooling keeps that order                          `max_pool2x2`, else PyTorch's rule folds K into B and copies
    freed buffers are kept                            `core.memory`, else every step has page faults again

Figures, and what was tried and dropped: docs/background/engine.md.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGE_WEIGHT = 2**16  # elements of one client's weight


def has_client_axis(x: Tensor) -> bool:
    """Whether the innermost transform around this code is a vmap over x."""
    return torch._C._functorch.is_batchedtensor(x)


def of_clients(info: Any, tensors: Sequence[Tensor], in_dims: Sequence[int | None]) -> tuple[Tensor, ...]:
    """What a rule of vmap is given, each with the client axis in front [K, …]; views."""
    pairs = zip(tensors, in_dims, strict=True)
    return tuple(t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs)


class _StackedMaxPool(torch.autograd.Function):
    """Provides the vmap rule of `max_pool2x2`; only vmap calls it, so autograd sees the rule's operations."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], -4)  # [B, K, C, H, W]: a view, as the convolution left it
        y = F.max_pool2d(x.flatten(-4, -3), 2)  # [B, K·C, H/2, W/2]
        return y.unflatten(-3, x.shape[-4:-2]), y.ndim - 3


def max_pool2x2(x: Tensor) -> Tensor:
    """`F.max_pool2d(x, 2)` with the same ties and odd sizes; under vmap the client axis is merged into channels.

    x   [B, C, H, W] or [C, H, W]; returns [..., C, H // 2, W // 2].
    """
    return _StackedMaxPool.apply(x) if has_client_axis(x) else F.max_pool2d(x, 2)


class MaxPool2x2(nn.Module):
    """`max_pool2x2` for use in `nn.Sequential`."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H // 2, W // 2]."""
        return max_pool2x2(x)


class _StackedGroupNorm(torch.autograd.Function):
    """Provides the vmap rule of `GroupNorm`: the clients' channels side by side, as groups of one image."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        return F.group_norm(x, groups, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        x = x.movedim(in_dims[0], -4)  # [B, K, C, H, W]: a view, as the convolution left it
        w, b = (t.flatten() for t in of_clients(info, (weight, bias), in_dims[1:3]))  # [K·C]
        y = F.group_norm(x.flatten(-4, -3), info.batch_size * groups, w, b, eps)
        return y.unflatten(-3, x.shape[-4:-2]), y.ndim - 3


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` of images; under vmap the client axis is merged into channels, where PyTorch's rule copies."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]."""
        if x.ndim != 4 or not has_client_axis(x):
            return super().forward(x)
        y: Tensor = _StackedGroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)
        return y


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """`F.cross_entropy(scores, y)`, the mean over rows; under vmap, where PyTorch has no rule, in half the time.

    scores   [B, C]; y [B] integers from 0 to C - 1.
    """
    if not has_client_axis(scores):
        return F.cross_entropy(scores, y)
    return -scores.log_softmax(1).gather(1, y[:, None]).squeeze(1).sum() / len(y)


class _StackedLinear(torch.autograd.Function):
    """x Wᵀ for every client; the gradient of W has W's own memory order."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = ctx.needs_input_grad
        return grad @ weight if by_x else None, grad.mT @ x if by_weight else None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        x, weight = of_clients(info, inputs, in_dims)  # [K, B, in], [K, out, in]
        return _StackedLinear.apply(x, weight), 0


class Linear(nn.Linear):
    """`nn.Linear`; a large weight with the client axis gets a gradient that need not be copied.

    PyTorch's vmap rule returns the gradient of W transposed, and autograd copies all K of them into W's order: a third
    of a step of 784-128-10 at B = 4.  A small weight costs less to copy than a backward in Python costs to call.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The affine map of x: [B, in] -> [B, out]."""
        large = x.ndim == 2 and self.weight.numel() >= _LARGE_WEIGHT
        if not (large and has_client_axis(x) and has_client_axis(self.weight)):
            return super().forward(x)
        y = _StackedLinear.apply(x, self.weight)
        return y if self.bias is None else y + self.bias


def with_width(layers: list[nn.Module], width: int, features: int) -> nn.Sequential:
    """The layers of a body, and one more where another feature width is asked than they have."""
    return nn.Sequential(*layers, *([Linear(width, features), nn.ReLU()] if width != features else []))


def stacked_layout(x: Tensor) -> Tensor:
    """The same values and shape, in the memory order that the stacked convolution reads.

    x   [K, B, C, H, W]; on a CPU it is stored as [B, H, W, K, C] afterwards, anything else is returned unchanged.
    """
    if x.ndim != 5 or x.device.type != "cpu":
        return x
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


def stacked_weights(net: nn.Module, tensors: dict[str, Tensor], clients: int, batch: int) -> dict[str, Tensor]:
    """A net's convolution weights in the memory order that is fastest for this number of clients and batch size.

    With `stacked_layout` that is [K, O, H, W, I]; for one client, or one row per client, PyTorch uses other kernels.
    tensors   with a client axis, weights [K, O, I, H, W]; tensors shared by all clients are left unchanged.
    """
    names = [f"{name}.weight" for name, m in net.named_modules() if isinstance(m, nn.Conv2d)]
    mine = {n: tensors[n] for n in names if n in tensors and tensors[n].stride(0) and tensors[n].device.type == "cpu"}
    if clients == 1 or batch == 1:
        return {n: t.contiguous() for n, t in mine.items()}
    return {n: t.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) for n, t in mine.items()}


def has_convolutions(net: nn.Module) -> bool:
    """Whether a net gains from `stacked_layout`."""
    return any(isinstance(m, nn.Conv2d) for m in net.modules())


def is_statistic(tensor: str) -> bool:
    """Whether a tensor, by its name, is a running statistic of BatchNorm: averaged, but not optimised."""
    return tensor.endswith(("running_mean", "running_var", "num_batches_tracked"))


def batch_norm_tensors(net: nn.Module) -> set[str]:
    """The full names of all tensors of a net's BatchNorm layers: weights, biases and running statistics."""
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)}
    return {f"{name}.{tensor}" for name, layer in layers.items() for tensor in layer.state_dict()}
