"""A user's model, `FILE.py:NAME(options)`: what their function returns, checked and split into a body and a head.

The function is called with the shape of a row, the number of classes and the options.  It returns a module with the
parts `body` and `head`, or any module whose last layer the option `head` names; then the rest is the body.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedtune.core import randomness
from fedtune.core.errors import UserError, unknown
from fedtune.core.pure import is_declared
from fedtune.core.trees import in_words
from fedtune.nn import catalogue
from fedtune.nn.net import Net, Shape, hooks_on_all, rows_in_words
from fedtune.user_code import entry_points, user_errors, user_files

# options of a model: `head` is for fedtune alone, `features` is passed to a function that takes it
HEAD, FEATURES = "head", "features"
_ROWS = 2  # rows of a run whose results are not used
_calling = partial(user_errors.reported, passing=(UserError,))  # whatever the user's code raises: what was being done


def build(name: str, shape: Shape, classes: int, features: int = 0) -> Net:
    """A user's model, initialised from torch's current random state.

    features: the requested width, if not 0; it is passed to the function if it takes `features`.
    """
    net = _parted(name, _whole(name, shape, classes, features))
    net.declared = ("body", "head") if is_declared(_maker(name)) else ()
    return net


def width(name: str, shape: Shape, classes: int, features: int, dtype: torch.dtype) -> int:
    """The width D of its features, found by running it; UserError for a model that cannot be trained."""
    return _inspected(name, user_files.version(name), shape, classes, features, dtype)


@lru_cache(maxsize=64)
def _inspected(name: str, version: str, shape: Shape, classes: int, features: int, dtype: torch.dtype) -> int:
    """In an execution of its own: a run must not depend on whether its process has done this before."""
    with _apart(), torch.no_grad():
        whole = _whole(name, shape, classes, features).eval()
        with randomness.seeded(0):
            net = build(name, shape, classes, features).eval()
        _require_usable(name, net, whole)
        x = torch.randn(3, *shape) if dtype.is_floating_point else torch.randint(2, (3, *shape))
        rows = rows_in_words(shape, dtype)
        with _calling(f"the body of {name} fails on {rows}"):
            z = net.body(x)
        _require_features(name, net, x, z)
        with _calling(f"the head of {name} does not take the body's features [B, {z.shape[1]}]"):
            logits = net.head(z)
        if not isinstance(logits, Tensor) or logits.shape != (3, classes):
            raise UserError(f"the head of {name} must return scores [B, {classes}], but returned {in_words(logits)}")
        if type(whole).forward is not nn.Module.forward:
            with _calling(f"forward of {name} fails on {rows}"):
                _require_same(name, logits, whole(x))
    return z.shape[1]


def _whole(name: str, shape: Shape, classes: int, features: int) -> nn.Module:
    """What the user's function returns, with its lazy tensors created."""
    net = _made(name, shape, classes, features)
    if _grows(name, user_files.version(name), shape, classes, features):
        _run_once(net, shape)
    return net


@lru_cache(maxsize=64)
def _grows(name: str, version: str, shape: Shape, classes: int, features: int) -> bool:
    """Whether a net creates tensors when it first runs; UserError if it does so only in training.

    As `_inspected`, in an execution of its own.
    """
    with _apart():
        net = _made(name, shape, classes, features)
        names, lazy = set(net.state_dict()), any(is_lazy(t) for t in (*net.parameters(), *net.buffers()))
        _run_once(net, shape)
        known = set(net.state_dict())
        _run_once(net, shape, training=True)
    if new := sorted(set(net.state_dict()) - known):
        raise UserError(f"{new[0]} of {name} is created only in training; create it in __init__, or in any forward")
    return lazy or known != names


def _maker(name: str) -> Any:
    """The user's function: from their file, or from an installed package."""
    offered = entry_points.find(catalogue.GROUP, name, "model", [*catalogue.WIDTHS, *catalogue.FAMILIES])
    return user_files.load(name, "model") if offered is None else offered


@contextmanager
def _apart() -> Iterator[None]:
    """In an execution of its own, with random numbers of its own."""
    with user_files.Execution().used(), randomness.seeded(0):
        yield


def _made(name: str, shape: Shape, classes: int, features: int) -> nn.Module:
    """What the user's function returns; UserError unless it is a module."""
    make, options = _maker(name), dict(user_files.call_options(name))
    options.pop(HEAD, None)
    if not callable(make) or isinstance(make, nn.Module):
        raise UserError(
            f"a model must be a function (shape, classes, **options) that returns a torch.nn.Module, but {name} is "
            f"{in_words(make)}"
        )
    if features and _takes(make, FEATURES):
        options.setdefault(FEATURES, features)
    hooks = hooks_on_all()
    with _calling(f"model {name} cannot be made for {classes} classes of {'×'.join(map(str, shape))}"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element|Lazy modules are")  # checked below
            net = make(shape, classes, **options)
    if not isinstance(net, nn.Module):
        raise UserError(f"{name} must return a torch.nn.Module, but returned {in_words(net)}")
    if hooks_on_all() != hooks:
        raise UserError(
            f"a model may only hook its own layers, but making {name} registers a hook on all modules "
            "(torch.nn.modules.module), which would outlive it and be added for every trial; register it on the layers "
            "that need it"
        )
    _require_plain(name, net)
    return net


def _takes(make: Callable[..., Any], option: str) -> bool:
    """Whether a function names this parameter; not if Python cannot tell."""
    try:
        return option in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False


def _parted(name: str, net: nn.Module) -> Net:
    """The module split into a body and a head; UserError if that is not possible."""
    layer = user_files.call_options(name).get(HEAD)
    if layer is not None:
        return _cut(name, net, str(layer))
    parts = dict(net.named_children())
    outside = [n for n in net.state_dict() if n.split(".")[0] not in ("body", "head")]
    if not {"body", "head"} <= set(parts) or outside:
        raise UserError(
            f"a model must have the parts body and head, and all tensors in them, but what {name} returns has "
            f"{', '.join(outside[:3] or parts) or 'none'}; put all in them, or name its last layer: an option "
            f"head='{list(parts)[-1] if parts else 'LAYER'}' after its name"
        )
    return Net(parts["body"], parts["head"])


def _cut(name: str, net: nn.Module, layer: str) -> Net:
    """The named layer becomes the head, and the rest of the module the body."""
    layers = dict(net.named_modules())
    if not layer or layer not in layers:
        raise unknown(f"layer of {name}", layer, [n for n in layers if n])
    owner, _, last = layer.rpartition(".")
    setattr(layers[owner], last, nn.Identity())
    cut = Net(net, layers[layer])
    cut.head_was = layer
    return cut


UNTRAINABLE: tuple[tuple[Callable[[Tensor], Any], str], ...] = (  # of parameters
    (lambda t: not t.numel(), "is empty; give it a width of 1 or more"),
    (
        lambda t: not t.requires_grad,
        "has requires_grad=False, which is not supported; make it a buffer, or freeze the body with "
        "--set body_lr_scale=0",
    ),
    (
        lambda t: t._backward_hooks or getattr(t, "_post_accumulate_grad_hooks", None),
        "has a hook (register_hook), which would not be called, as each client has its own tensor; do this in forward",
    ),
)


def _require_usable(name: str, net: Net, again: nn.Module) -> None:
    """UserError for tensors that clients cannot have separately, or that the seed does not determine."""
    seen, held = dict[int, str](), net.state_dict()
    for tensor, t in (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)):
        if t.is_meta or is_lazy(t) or (t.is_complex() and tensor in held):  # a mean of clients is of real numbers
            raise UserError(
                f"{tensor} of {name} must be real numbers on the CPU, of a size that is known before training, but is "
                f"a {type(t).__name__} of {t.dtype} on {t.device}"
            )
        if isinstance(t, nn.Parameter) and (found := [says for wrong, says in UNTRAINABLE if wrong(t)]):
            raise UserError(f"{tensor} of {name} {found[0]}")
        if (other := seen.setdefault(id(t), tensor)) != tensor:
            raise UserError(
                f"{tensor} of {name} is the same tensor as {other}, but tied tensors are not supported; call one "
                "layer twice in forward"
            )
    first, second = list(held.values()), list(_sorted_as(net, again))
    if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)):
        raise UserError(
            f"a seed must determine the initialisation, but two of {name} differ; use only torch's random numbers"
        )


def _sorted_as(net: Net, whole: nn.Module) -> Iterator[Tensor]:
    """The tensors of the uncut module in the order of the net's."""
    theirs = whole.state_dict()
    for n in net.state_dict():
        part, _, rest = n.partition(".")
        yield theirs[n if net.head_was is None else rest if part == "body" else f"{net.head_was}.{rest}"]


def _require_features(name: str, net: Net, x: Tensor, z: Any) -> None:
    """UserError unless the body returns one finite vector per row, independent of the other rows."""
    if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != 3 or not z.shape[1] or not z.is_floating_point():
        raise UserError(
            f"the body of {name} must return features [B, D] for B rows, but returned {in_words(z)} for 3 rows"
        )
    if not z.isfinite().all():
        raise UserError(f"the body of {name} must return finite numbers, but returned nan or inf before any training")
    for layer, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise UserError(
                f"BatchNorm of {name} must keep running statistics, or a row's features depend on other rows of its "
                f"batch, but {layer} has track_running_stats=False; leave that out, or use GroupNorm"
            )
    with _calling(f"the body of {name} fails on a single row"):
        alone = torch.cat([net.body(row[None]) for row in x])
    if alone.shape != z.shape or not torch.allclose(alone, z, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"in evaluation a row's features must depend on this row only, but those of {name} change with other rows "
            "of the batch, or from call to call; batch statistics and randomness must be off under eval()"
        )


def _require_same(name: str, logits: Tensor, whole: Any) -> None:
    """UserError unless forward is head(body(x)); anything else in it would be ignored."""
    alike = isinstance(whole, Tensor) and whole.shape == logits.shape
    if not alike or not torch.allclose(whole, logits, rtol=1e-3, atol=1e-4):
        raise UserError(
            f"forward of {name} must be head(body(x)), but it does something else, which would be ignored; put what is "
            "in between into body, and return scores without softmax"
        )


def _require_plain(name: str, net: nn.Module) -> None:
    """UserError for modules whose tensors cannot be replaced per client."""
    for path, module in net.named_modules():
        if (
            isinstance(module, torch.jit.ScriptModule | nn.DataParallel | nn.parallel.DistributedDataParallel)
            or type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
            or type(module).__module__.startswith(("torch.ao.", "torch.quantization."))
        ):
            raise UserError(
                f"a model's tensors must be replaceable client by client, but {f'{path} of ' * bool(path)}{name} is a "
                f"{type(module).__name__}: return it as it was before TorchScript, torch.compile, quantisation or "
                "DataParallel"
            )


def _run_once(net: nn.Module, shape: Shape, training: bool = False) -> None:
    """Run the net once to create its lazy tensors.  Errors are ignored here; they are reported when it runs next."""
    before, rows = net.training, torch.zeros(_ROWS, *shape)
    net.train(training)
    for x in (rows, rows.long()):
        with suppress(Exception), torch.no_grad():
            _forward(net, x)
            break
    net.train(before)


def _forward(net: nn.Module, x: Tensor) -> None:
    parts = dict(net.named_children())
    if type(net).forward is nn.Module.forward and {"body", "head"} <= set(parts):
        parts["head"](parts["body"](x))
    else:
        net(x)
