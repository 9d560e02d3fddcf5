"""What client code needs to run fast over a stack of clients on a CPU; alone, each is PyTorch's own operation.

Client code is written for one client.  Outside `torch.func.vmap` everything here is PyTorch's own operation at its own
speed; inside, with an input that carries the client axis, it is the same computation in a cheaper memory order.
Convolutions need nothing: vmap already turns K of them into one grouped convolution, which oneDNN runs best if

    the batch lies in memory as [B, H, W, K, C]       `stacked_layout`, else the convolution copies
    pooling leaves it so                              `max_pool2x2`, else PyTorch's rule folds K into B and copies
    freed buffers are kept                            `core.memory`, else every step faults its pages in again

Measured on one thread (EPYC 9004, torch 2.13, K = 20, SGD with momentum; speed-up over one eager client at a time):

    two-conv CNN              B = 4        B = 10       B = 32
    plain vmap                1.6          1.1          0.8          with either one alone 1.7, 1.1, 0.9
    + layout + pooling        2.5 - 3.2    2.2 - 2.4    1.2 - 1.7    the span is page faults: up to 6000 a step
    + memory kept             2.8 - 3.3    2.0 - 2.4    1.7 - 1.9

That is of steps as vmap and autograd run them; most are replayed from tapes now, and what these reach is measured in
docs/engine.md.  Tried and dropped, as none was faster: a convolution with its own vmap rule and the bias inside (0.95
of the above); im2col and bmm (forward and backward together slower than oneDNN's grouped convolution); chunks of
clients (each pays a step's 1.7 ms of overhead; only from B = 64 on do five at a time gain 4 to 7 %).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGE_WEIGHT = 2**16  # numbers in one client's weight


def _has_client_axis(x: Tensor) -> bool:
    """Whether the innermost transform around this code is a vmap over x.

    Asked, so that outside vmap PyTorch's own operation runs: an autograd.Function there costs 25 % of a small step.
    """
    return torch._C._functorch.is_batchedtensor(x)


class _StackedMaxPool(torch.autograd.Function):
    """Carries the vmap rule of `max_pool2x2`; only vmap calls it, so autograd sees the operations of the rule."""

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
    """`F.max_pool2d(x, 2)`, ties and odd sizes as there; under vmap the client axis goes into channels, not the batch.

    x   [B, C, H, W] or [C, H, W]; returns [..., C, H // 2, W // 2].
    """
    return _StackedMaxPool.apply(x) if _has_client_axis(x) else F.max_pool2d(x, 2)


class MaxPool2x2(nn.Module):
    """`max_pool2x2` for use in `nn.Sequential`."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H // 2, W // 2]."""
        return max_pool2x2(x)


def cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    """`F.cross_entropy(scores, y)`, the mean over rows; under vmap the same to the last bit, in half the time.

    PyTorch has no rule of its own for a stack of these: it runs a decomposition in Python, which looks for labels to be
    ignored and, when first used, imports a system for symbolic algebra.
    scores   [B, C]; y [B] whole numbers from 0 to C - 1.
    """
    if not _has_client_axis(scores):
        return F.cross_entropy(scores, y)
    return -scores.log_softmax(1).gather(1, y[:, None]).squeeze(1).sum() / len(y)


class _StackedLinear(torch.autograd.Function):
    """x Wᵀ for every client; the gradient by W comes out in W's own memory order."""

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
        x, weight = (  # [K, B, in], [K, out, in]
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(inputs, in_dims, strict=True)
        )
        return _StackedLinear.apply(x, weight), 0


class Linear(nn.Linear):
    """`nn.Linear`; a large weight that carries the client axis gets a gradient that need not be copied.

    PyTorch's rule for a stack makes the gradient by W transposed, and autograd copies all K of them into W's order.
    Speed-up over the loop without and with this: 784-128-10 at B = 4 1.1 -> 1.7, at B = 32 1.0 -> 1.35; McMahan's CNN
    (a weight of 512 x 1024) at B = 4 0.8 -> 1.2, at B = 10 1.0 -> 1.25.  A small weight costs less to copy than a
    backward in Python costs to call.  Simply writing (W xᵀ)ᵀ also avoids the copy, and is faster where x needs no
    gradient, but MKL's batched product for the gradient by x is then up to 18 times slower.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The affine map of x: [B, in] -> [B, out]."""
        large = x.ndim == 2 and self.weight.numel() >= _LARGE_WEIGHT
        if not (large and _has_client_axis(x) and _has_client_axis(self.weight)):
            return super().forward(x)
        y = _StackedLinear.apply(x, self.weight)
        return y if self.bias is None else y + self.bias


def stacked_layout(x: Tensor) -> Tensor:
    """The same values and shape, laid out in memory as the stacked convolution reads them.

    x   [K, B, C, H, W]; on a CPU it comes back lying as [B, H, W, K, C].  Whatever is no image batch, or not on a CPU,
    comes back as it is.  Only for nets with convolutions, which gain 1.7 to 2 times for one copy of the batch:
    a net that flattens its input has to undo it (784-128-10 trains 1.2 and predicts 1.6 times slower with it).
    """
    if x.ndim != 5 or x.device.type != "cpu":
        return x
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


def stacked_weights(net: nn.Module, tensors: dict[str, Tensor], clients: int, batch: int) -> dict[str, Tensor]:
    """The weights of a net's convolutions in the memory order in which so many stacked clients work on such a batch.

    Beside `stacked_layout` that is [K, O, H, W, I]: the convolution would bring them there in every call, and what it
    gives as their gradient back.  For one client, or one row each, PyTorch takes other kernels.
    tensors   with a client axis, weights [K, O, I, H, W]; what is one for all clients is left alone.
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
    """Whether a tensor is one of BatchNorm's running numbers, by its name: what is averaged, but not optimised."""
    return tensor.endswith(("running_mean", "running_var", "num_batches_tracked"))


def batch_norm_tensors(net: nn.Module) -> set[str]:
    """The full names of all tensors of a net's BatchNorm layers: weights, biases and running numbers."""
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)}
    return {f"{name}.{tensor}" for name, layer in layers.items() for tensor in layer.state_dict()}
