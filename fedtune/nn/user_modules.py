"""Modules of a user's that are not as they are trained: wrapped or compiled, or without their tensors before a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedtune.core.errors import UserError
from fedtune.nn.net import Shape

ROWS = 2  # of a run whose numbers nobody looks at


def require_plain(name: str, net: nn.Module) -> None:
    """UserError for modules whose tensors no client can have as its own, and for hooks that would never be called."""
    for path, module in net.named_modules():
        kind, where = type(module), f"{path} of {name}" if path else name
        if isinstance(module, torch.jit.ScriptModule):
            what = "a TorchScript module; return it as it was before torch.jit.script or torch.jit.trace"
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            what = f"a {kind.__name__}; return the module inside, its .module"
        elif kind.__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            what = "compiled by torch.compile; return it uncompiled, as steps are recorded and run again here"
        elif kind.__module__.startswith(("torch.ao.", "torch.quantization.")):
            what = f"a quantised {kind.__name__}; return it as it was before torch.ao.quantization"
        else:
            continue
        raise UserError(f"a model's tensors are given to it client by client, but {where} is {what}")
    for tensor, t in net.state_dict().items():
        if isinstance(t, Tensor) and t.is_complex():  # a mean over clients would lose what is imaginary
            raise UserError(
                f"a model is made of real numbers, but {tensor} of {name} is complex; keep its real and its imaginary "
                "part as a tensor each (torch.view_as_real)"
            )
    for tensor, p in net.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UserError(
                f"{tensor} of {name} has a hook of its own (register_hook), which is not called, as each client has a "
                "tensor in its place; do that in forward"
            )


def has_lazy(net: nn.Module) -> bool:
    """Whether tensors have no size before the net is run."""
    return any(is_lazy(t) for t in (*net.parameters(), *net.buffers()))


def run_once(net: nn.Module, shape: Shape) -> None:
    """Let the net make the tensors that it makes when it is first run.  What goes wrong is told where it runs next."""
    training, rows = net.training, torch.zeros(ROWS, *shape)
    net.eval()
    for x in (rows, rows.long()):
        with suppress(Exception), torch.no_grad():
            _forward(net, x)
            break
    net.train(training)


def grows(name: str, make: Callable[[], nn.Module], shape: Shape) -> bool:
    """Whether a net makes tensors when it is first run; UserError if it does so only in training."""
    net = make()
    names = set(net.state_dict())
    run_once(net, shape)
    late = set(net.state_dict()) - names
    net.train()
    for x in (torch.zeros(ROWS, *shape), torch.zeros(ROWS, *shape).long()):
        with suppress(Exception), torch.no_grad():
            _forward(net, x)
            break
    if new := sorted(set(net.state_dict()) - names - late):
        raise UserError(f"{new[0]} of {name} is made when it is first trained; make it in __init__, or in any forward")
    return bool(late)


def _forward(net: nn.Module, x: Tensor) -> None:
    parts = dict(net.named_children())
    if type(net).forward is nn.Module.forward and {"body", "head"} <= set(parts):
        parts["head"](parts["body"](x))
    else:
        net(x)
