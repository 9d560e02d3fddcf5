"""Check a user's modules: wrapped or compiled ones are refused, and lazy ones are run once to create their tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedtune.core.errors import UserError
from fedtune.nn.net import Shape

ROWS = 2  # rows of a run whose results are not used


def require_plain(name: str, net: nn.Module) -> None:
    """UserError for modules whose tensors cannot be replaced per client, and for hooks that would never be called."""
    for path, module in net.named_modules():
        kind, where = type(module), f"{path} of {name}" if path else name
        if isinstance(module, torch.jit.ScriptModule):
            what = "a TorchScript module; return it as it was before torch.jit.script or torch.jit.trace"
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            what = f"a {kind.__name__}; return the module inside, its .module"
        elif kind.__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            what = "compiled by torch.compile; return it uncompiled, because fedtune records and replays steps itself"
        elif kind.__module__.startswith(("torch.ao.", "torch.quantization.")):
            what = f"a quantised {kind.__name__}; return it as it was before torch.ao.quantization"
        else:
            continue
        raise UserError(f"a model's tensors must be replaceable client by client, but {where} is {what}")
    for tensor, t in net.state_dict().items():
        if isinstance(t, Tensor) and t.is_complex():  # averaging over clients would lose the imaginary part
            raise UserError(
                f"a model's tensors must be real, but {tensor} of {name} is complex; keep its real and its imaginary "
                "part as separate tensors (torch.view_as_real)"
            )
    for tensor, p in net.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UserError(
                f"a parameter must not have a hook (register_hook), but {tensor} of {name} has one; it would not be "
                "called, because each client has its own tensor: do this in forward"
            )


def has_lazy(net: nn.Module) -> bool:
    """Whether any tensor has no shape until the net is run."""
    return any(is_lazy(t) for t in (*net.parameters(), *net.buffers()))


def run_once(net: nn.Module, shape: Shape) -> None:
    """Run the net once to create its lazy tensors.  Errors are ignored here; they are reported when it runs next."""
    training, rows = net.training, torch.zeros(ROWS, *shape)
    net.eval()
    for x in (rows, rows.long()):
        with suppress(Exception), torch.no_grad():
            _forward(net, x)
            break
    net.train(training)


def grows(name: str, make: Callable[[], nn.Module], shape: Shape) -> bool:
    """Whether a net creates tensors when it is first run; UserError if it does so only in training."""
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
        raise UserError(f"{new[0]} of {name} is created only in training; create it in __init__, or in any forward")
    return bool(late)


def _forward(net: nn.Module, x: Tensor) -> None:
    parts = dict(net.named_children())
    if type(net).forward is nn.Module.forward and {"body", "head"} <= set(parts):
        parts["head"](parts["body"](x))
    else:
        net(x)
