"""The gradient of a function within client code, where `torch.func.vmap` runs around it or not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import _unwrap_for_grad, _wrap_for_grad
from torch._functorch.eager_transforms import enable_inplace_requires_grad, grad_increment_nesting


def gradient(fn: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """∂ fn / ∂ its tensors, as `torch.func.grad` computes it, but as constants: no gradient passes through them.

    torch.func.grad imports PyTorch's compiler, which takes seconds and sets environment variables, and keeps the graph
    of the backward pass for another one.  A test compares the two.
    """
    tensors = {n: t.detach() for n, t in tensors.items()}
    with grad_increment_nesting() as level, torch.enable_grad():
        moving = {n: _wrap_for_grad(t, level) for n, t in tensors.items()}
        with enable_inplace_requires_grad(True):
            leaves = [t.requires_grad_() for t in moving.values()]
        loss = fn(moving)
        grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else [None] * len(leaves)
        triples = zip(moving, leaves, grads, strict=True)
        slopes = {n: _unwrap_for_grad(torch.zeros_like(t) if g is None else g, level) for n, t, g in triples}
    return {n: g.detach() for n, g in slopes.items()}
