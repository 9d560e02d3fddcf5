"""What client code needs to run fast over a stack of clients on a CPU; alone, each is PyTorch's own operation.

Client code is written for one client.  Outside `torch.func.vmap` everything here is PyTorch's own operation at its own
speed; inside, with an input that carries the client axis, it is the same computation in a cheaper memory order.
Convolutions need nothing: vmap already turns K of them into one grouped convolution, which oneDNN runs best if

    the batch lies in memory as [B, H, W, K, C]       `stacked_layout`, else the convolution copies
    pooling leaves it so                              `max_pool2x2`, else PyTorch's rule folds K into the batch and copies
    freed buffers are kept                            `keep_freed_memory`, else every step faults its pages in again

Measured on one thread (EPYC 9004, torch 2.13, K = 20, SGD with momentum; speed-up over one eager client at a time):

    two-conv CNN              B = 4        B = 10      B = 32
    plain vmap                1.7          1.1         0.9
    + layout + pooling        2.5 - 3.2    2.2 - 2.4   1.2 - 1.7     the span is page faults: up to 6000 a step
    + memory kept             2.9 - 3.2    2.3         1.7

Tried and dropped, as none was faster: a convolution with its own vmap rule and the bias inside (0.95 of the above),
im2col + bmm, chunks of clients (each chunk pays 1.7 ms of Python a step), bias after pooling, another cross-entropy.
"""

import ctypes
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def _has_client_axis(x: Tensor) -> bool:
    """Whether the innermost transform around this code is a vmap over x.  An autograd.Function could be called without
    asking, but costs 2 % of a small client's step outside vmap; if the name below goes, `return True` is right too."""
    return torch._C._functorch.is_batchedtensor(x)


class _StackedMaxPool(torch.autograd.Function):
    """Carries the vmap rule of `max_pool2x2`; only vmap calls it, so autograd sees the operations of the rule."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: object, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], -4)                              # [B, K, C, H, W]: a view, as the convolution left it
        y = F.max_pool2d(x.flatten(-4, -3), 2)                     # [B, K·C, H/2, W/2]
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


class Linear(nn.Linear):
    """`nn.Linear`; under vmap written as (W xᵀ)ᵀ + b, whose gradient by W comes out in W's own memory order.

    PyTorch's rule gives the transposed gradient, and autograd then copies it, K weights at a time.  784-128-10 without
    the copy: B = 4 14 % faster, B = 32 25 %; nothing measurable where the weight is small.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[B, in] -> [B, out]."""
        if not _has_client_axis(x) or x.ndim != 2:
            return super().forward(x)
        y = (self.weight @ x.mT).mT
        return y if self.bias is None else y + self.bias


def stacked_layout(x: Tensor) -> Tensor:
    """The same values and shape, laid out in memory as the stacked convolution reads them.

    x   [K, B, C, H, W]; on a CPU it comes back lying as [B, H, W, K, C].  Whatever is no image batch, or not on a CPU,
    comes back as it is.  Costs one copy of the batch (1 % of a step); only worth it for a net with convolutions.
    """
    if x.ndim != 5 or x.device.type != "cpu":
        return x
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory for the next step instead of returning it to the system; call it once.

    A stacked step frees and allocates the same few buffers of 1 to 50 MB.  glibc hands them back each time, and the
    next step pays a page fault for every 4 kB: 1500 faults a step of the two-conv CNN at B = 4 (a third of its time),
    6000 at B = 32.  Values do not change, and the loop over clients is as fast with it as without; the process
    stays as large as its largest step.  Returns whether it took effect: False where the C library is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**30))
