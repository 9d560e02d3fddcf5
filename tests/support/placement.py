"""A GPU without a GPU: tensors compute on the CPU, and their memory carries the device that it would lie on.

    with placement.watched() as faults:
        ...  # device="cuda" may be said here
    assert not faults

Nothing but the mark is pretended, so autograd, vmap, recorded steps and files run as ever, and what comes out is what
comes out on the CPU.  The mark is on a tensor's storage: views, detached tensors and those that autograd saves have it
too.  A function mode, above autograd and vmap, answers `.device` and takes the wish for a device out of calls; a
dispatch mode, below them, refuses operations on tensors of two devices by CUDA's rules.  Every refusal is kept among
the faults, too, as an engine with a second way may catch it.

Not seen: kernels that CUDA lacks, its rounding, streams, memory, speed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedtune.core.draws import Draws

CPU, CUDA = "cpu", "cuda"
EITHER = "either"  # of what a recorded step makes of no tensor: its line says the device, which here is no other
aten = torch.ops.aten


class Misplaced(RuntimeError):
    """What CUDA would refuse."""


def where(t: Tensor) -> str:
    """The device that a tensor would lie on."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(t):
        t = functorch.get_unwrapped(t)
    return getattr(t.untyped_storage(), "lies_on", CPU)


def put(t: Tensor, device: str) -> None:
    """Mark a tensor's memory."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(t):
        t = functorch.get_unwrapped(t)
    t.untyped_storage().lies_on = device


def tensors(*trees: Any) -> list[Tensor]:
    """The tensors in arguments or results."""
    found: list[Tensor] = []
    waiting = list(trees)[::-1]
    while waiting:
        tree = waiting.pop()
        if isinstance(tree, Tensor):
            found.append(tree)
        elif isinstance(tree, tuple | list):
            waiting += tree[::-1]
        elif isinstance(tree, dict):
            waiting += [*tree.values()][::-1]
    return found


def kind(device: Any) -> str:
    """cpu or cuda."""
    return CUDA if isinstance(device, int) else torch.device(device).type


MADE = {
    getattr(torch, name)
    for name in (
        "arange empty eye from_numpy frombuffer full hann_window linspace logspace ones rand randint randn randperm "
        "tensor tril_indices triu_indices zeros"
    ).split()
}
TAKEN = {torch.as_tensor, torch.asarray}  # a tensor stays what it is, or moves
INDEXED = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# an operand of one number may come from the CPU, as in what is done entry by entry
WITH_NUMBER = {"aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::index_fill_"}


class _Below(TorchDispatchMode):
    """Operations as they reach the kernels."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self.faults = faults
        self.device = EITHER  # of what is made of no tensor, in the call under way
        self.moving = ""  # where the next copy goes to

    def refuse(self, what: str) -> None:
        self.faults.append(what)
        raise Misplaced(what)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors(args, kwargs)
        gpu = [t for t in given if where(t) == CUDA]
        if gpu and any(where(t) == CPU for t in given):
            self.require_fit(func, args, given)
        device = CUDA if gpu else where(given[0]) if given else self.device
        if self.moving and func in (aten.clone.default, aten._to_copy.default):
            device = self.moving
        out = self.drawn(func, args, kwargs) if gpu and random(func) else func(*args, **kwargs)
        if device != CPU:
            for made in tensors(out):
                if not any(made is t for t in given):
                    made.untyped_storage().lies_on = device
        return out

    def require_fit(self, func: Any, args: Any, given: list[Tensor]) -> None:
        """Refuse tensors of both devices in one operation, but where CUDA allows them."""
        name, cpu = func._schema.name, [t for t in given if where(t) == CPU]
        if name == "aten::copy_":
            return
        if name in INDEXED and where(args[0]) == CUDA:
            value = args[2] if len(args) > 2 else args[0]
            if where(value) == CUDA or not value.dim():
                return
        elif not any(t.dim() for t in cpu) and (name in WITH_NUMBER or torch.Tag.pointwise in func.tags):
            written = [t for t, a in zip(args, func._schema.arguments, strict=False) if a.alias_info]
            if not any(where(t) == CPU for t in tensors(written)):
                return
        self.refuse(f"{name} of tensors on both devices: {[(where(t), *t.shape) for t in given]}")

    def drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation that may draw gives on the GPU; it must not draw there."""
        before = torch.get_rng_state()
        out = func(*args, **kwargs)
        if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            self.refuse(f"{func._schema.name} on the GPU is given a generator of the CPU")
        if not torch.equal(before, torch.get_rng_state()):
            self.refuse(f"{func._schema.name} draws on the GPU, where other numbers come out than on the CPU")
        return out


def random(func: Any) -> bool:
    """Whether an operation may draw."""
    return torch.Tag.nondeterministic_seeded in func.tags


class _Above(TorchFunctionMode):
    """Calls as Python makes them."""

    def __init__(self, below: _Below) -> None:
        super().__init__()
        self.below = below
        self.answers: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda t: torch.device(where(t)),  # type: ignore[attr-defined]
            Tensor.is_cuda.__get__: lambda t: where(t) == CUDA,  # type: ignore[attr-defined]
            Tensor.is_cpu.__get__: lambda t: where(t) == CPU,  # type: ignore[attr-defined]
            Tensor.get_device: lambda t: 0 if where(t) == CUDA else -1,
            Tensor.cuda: lambda t, *_, **__: self.moved(t, CUDA),
            Tensor.cpu: lambda t, *_, **__: self.moved(t, CPU),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.answers:
            return self.answers[func](*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):  # as a recorded step runs it
            return func(*args, **kwargs)
        if func in (Tensor.numpy, Tensor.__array__) and where(args[0]) == CUDA:
            self.below.refuse("an array of numpy is asked of a tensor on the GPU")
        if func is Tensor.to:
            return self.to(*args, **kwargs)
        wish = kwargs.pop("device", None)
        if func in TAKEN and isinstance(args[0], Tensor):
            t = func(*args, **kwargs)
            return t if wish is None else self.moved(t, kind(wish))
        if func is Tensor.new_tensor and wish is None:
            wish = where(args[0])
        if func is Tensor.__deepcopy__:
            wish = where(args[0])
        given = tensors(args, kwargs)
        device = kind(wish) if wish is not None else CUDA if any(where(t) == CUDA for t in given) else CPU
        if device == CUDA and not given and kwargs.get("generator") is not None:
            self.below.refuse(f"{func.__name__} on the GPU is given a generator of the CPU")
        out = self.run(device, "", func, args, kwargs)
        if wish is not None or func in MADE or func in TAKEN:
            for made in tensors(out):
                put(made, device)
        return out

    def run(self, device: str, moving: str, func: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """A call in which what is made of no tensor lies on a device, and copies go to another."""
        before = self.below.device, self.below.moving
        self.below.device, self.below.moving = device, moving
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.below.device, self.below.moving = before

    def to(self, t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Tensor.to: the type as ever, the device by the mark."""
        rest, device = list(args), kwargs.pop("device", None)
        if rest and isinstance(rest[0], str | torch.device | int):
            device = rest.pop(0)
        elif rest and isinstance(rest[0], Tensor):
            device = where(rest[0])
            rest[0] = rest[0].dtype
        cast = t.to(*rest, **kwargs) if rest or kwargs else t
        return cast if device is None else self.moved(cast, kind(device))

    def moved(self, t: Tensor, device: str) -> Tensor:
        """The tensor itself where it lies there, or a copy."""
        return t if where(t) == device else self.run(device, device, t.clone)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Within it the device `cuda` may be said; what CUDA would refuse raises, and is among the faults that it gives."""
    faults: list[str] = []
    below = _Below(faults)
    above = _Above(below)
    serve = Draws.__torch_dispatch__

    def served(self: Draws, *args: Any, **kwargs: Any) -> Any:
        with above:  # it asks where tensors lie, and PyTorch leaves the mode while it runs a call
            return serve(self, *args, **kwargs)

    def tag(storage: Any) -> str | None:
        return CUDA if getattr(storage, "lies_on", CPU) == CUDA else None

    def restore(storage: Any, location: str) -> Any:
        storage.lies_on = torch.device(location).type
        return storage

    packages = torch.serialization._package_registry
    files = (0, tag, restore)
    with pytest.MonkeyPatch.context() as patch, above, below:
        patch.setattr(Draws, "__torch_dispatch__", served)
        packages.insert(0, files)  # as files of tensors say where they lay, and are asked to lie elsewhere
        try:
            yield faults
        finally:
            packages.remove(files)
