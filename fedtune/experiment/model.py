"""One client's model as client code sees it: the structure of a net with the client's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import _unwrap_for_grad, _wrap_for_grad
from torch._functorch.eager_transforms import enable_inplace_requires_grad, grad_increment_nesting
from torch.func import functional_call


class Model:
    """One client's tensors as a model: m.body(x), m.head(z), m.part("proj")(z), m["head.weight"]."""

    def __init__(self, net: nn.Module, tensors: dict[str, Tensor], kept: dict[str, Any] | None = None) -> None:
        """net gives the structure (its own values are never used), tensors the values by full names.

        kept: the client's state between rounds.
        """
        self.net, self.tensors, self._state = net, tensors, kept or {}

    @property
    def kept(self) -> dict[str, Any]:
        """The client's state between rounds (`keep`, `remember`)."""
        return self._state

    def __getitem__(self, name: str) -> Tensor:
        """One tensor by its full name."""
        return self.tensors[name]

    def part(self, name: str) -> Callable[[Tensor], Tensor]:
        """The named part as a function."""
        start = len(name) + 1
        tensors = {n[start:]: t for n, t in self.tensors.items() if n.startswith(name + ".")}

        def run(x: Tensor) -> Tensor:
            current = dict(tensors)  # PyTorch writes the module's tensors back into it afterwards
            out: Tensor = functional_call(self.net.get_submodule(name), current, (x,), tie_weights=False)
            for n, t in tensors.items():
                if current[n] is not t:  # `forward` replaced a buffer (self.mean = …): treated as an in-place update
                    t.copy_(current[n].detach())
            return out

        return run

    def at(self, tensors: dict[str, Tensor]) -> Model:
        """The model with these tensors instead, for example a step or a mixture away; gradients pass through them."""
        return Model(self.net, self.tensors | tensors, self.kept)

    def gradient(self, loss: Callable[[Model], Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """∂ loss / ∂ these tensors, for a step within a step; the net's running statistics stay as they are.

        A constant: no gradient passes through it, as PyTorch's vmap differentiates BatchNorm wrongly a second time.
        """
        buffers = {n: self.tensors[n] for n, _ in self.net.named_buffers() if n in self.tensors}

        def loss_at(moving: dict[str, Tensor]) -> Tensor:
            return loss(self.at({n: t.clone() for n, t in buffers.items()} | moving))

        return gradient(loss_at, {n: self[n] for n in names})

    def still(self, tensors: dict[str, Tensor]) -> Model:
        """The model with these tensors instead, in evaluation mode (running statistics) and without gradient.

        For a model that training uses but does not train: the received one, or one that a client has kept.
        """
        return _EvaluationModel(self.net, self.tensors | tensors, self.kept)

    def body(self, x: Tensor) -> Tensor:
        """Features z [B, D] of a batch [B, …]."""
        return self.part("body")(x)

    def head(self, z: Tensor) -> Tensor:
        """Logits [B, C] of features [B, D]."""
        return self.part("head")(z)


class _EvaluationModel(Model):
    """A model in evaluation mode, while another view of the same net is trained."""

    def part(self, name: str) -> Callable[[Tensor], Tensor]:
        """The named part as a function, in evaluation mode while it runs."""
        run, modules = super().part(name), list(self.net.get_submodule(name).modules())

        def run_in_evaluation(x: Tensor) -> Tensor:
            modes = [m.training for m in modules]
            for m in modules:
                m.training = False
            try:
                with torch.no_grad():
                    return run(x)
            finally:
                for m, mode in zip(modules, modes, strict=True):
                    m.training = mode

        return run_in_evaluation


def gradient(fn: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """∂ fn / ∂ its tensors, as `torch.func.grad` computes it, but as constants: no gradient passes through them.

    torch.func.grad imports PyTorch's compiler, which takes seconds, and keeps the graph of the backward pass.
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
