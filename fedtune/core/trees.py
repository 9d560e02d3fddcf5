"""Trees of tensors (a tensor, a dict of trees, or a `Ragged`) whose first axis is the K clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtune.core.draws import Draws
from fedtune.core.errors import shown

Tree = Any
Executor = Literal["stack", "loop"]


class Ragged(NamedTuple):
    """A table with absent entries: only `values[present]` and the bitmap `present` are sent.

    values  [..., *E] entries of any shape E, padded where absent; never read an absent one.
    present [...] bool.

    >>> import torch
    >>> from fedtune import Ragged
    >>> protos = torch.zeros(3, 64)  # of three classes, of which a client has two
    >>> Ragged(protos, torch.tensor([True, False, True])).present.sum()
    tensor(2)
    """

    values: Tensor
    present: Tensor


torch.serialization.add_safe_globals([Ragged])  # so that a checkpoint loads with weights_only


def in_words(value: Any) -> str:
    """A value in a few words: a scalar as Python writes it, a tensor's type and shape, or its class."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if value is None or isinstance(value, str | bool | int | float):
        return shown(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply fn to every tensor of a tree, or of several trees of the same structure."""
    if isinstance(tree, dict):
        return {key: tree_map(fn, tree[key], *(r[key] for r in others)) for key in tree}
    if isinstance(tree, tuple):
        return type(tree)(*(tree_map(fn, *parts) for parts in zip(tree, *others, strict=True)))
    return fn(tree, *others)


def leaves(tree: Tree) -> list[Tensor]:
    """Every tensor of the tree, in order."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def named(tree: Tree, name: str = "") -> dict[str, Tensor]:
    """Every tensor of the tree under its path: `protos/values`."""
    if isinstance(tree, dict):
        return {n: t for key, part in tree.items() for n, t in named(part, f"{name}/{key}".lstrip("/")).items()}
    if isinstance(tree, tuple):
        pairs = zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
        return {n: t for key, part in pairs for n, t in named(part, f"{name}/{key}".lstrip("/")).items()}
    return {name: tree}


def take(tree: Tree, index: Any) -> Tree:
    """The clients at these positions: an int drops the axis, a slice gives views, a tensor gives copies."""
    return tree_map(lambda t: t[index], tree)


def put(tree: Tree, index: Tensor, values: Tree) -> Tree:
    """A copy of the tree with the clients at these positions replaced."""
    return tree_map(lambda t, n: t.index_copy(0, index.to(t.device), n), tree, values)


def join(trees: Sequence[Tree]) -> Tree:
    """Concatenate several trees along the client axis."""
    return tree_map(lambda *ts: torch.cat(ts), trees[0], *trees[1:]) if len(trees) > 1 else trees[0]


def to_all(tree: Tree, clients: int) -> Tree:
    """The same tree for every client: expanded along a new client axis, without using memory."""
    return tree_map(lambda t: t.expand(clients, *t.shape), tree)


def is_shared(t: Tensor) -> bool:
    """Whether a tensor is shared by all clients, as `to_all` makes it."""
    return t.dim() > 0 and len(t) > 1 and t.stride(0) == 0


def take_cheaply(tree: Tree, index: Tensor) -> Tree:
    """Like `take`, but a tensor shared by all clients stays shared and uses no memory."""
    return tree_map(lambda t: t[: len(index)] if is_shared(t) else t[index], tree)


def mean_over_clients(tree: Tree, weight: Tensor) -> Tree:
    """Σ_k weight_k · tree_k / Σ_k weight_k.   weight [K] >= 0.  Integers' means (BatchNorm's counter) are rounded."""

    def mean(t: Tensor) -> Tensor:
        real = t if t.is_floating_point() else t.double()
        share = (weight.double() / weight.double().sum()).to(real)
        out = torch.tensordot(share, real, dims=1)
        return out if t.is_floating_point() else out.round().to(t.dtype)

    return tree_map(mean, tree)


class Size(NamedTuple):
    """The size of messages: floating-point numbers, integers (counts, labels), and bytes."""

    floats: int
    ints: int
    bytes: int

    def plus(self, more: Size) -> Size:
        """The total size of two messages."""
        return Size(*(a + b for a, b in zip(self, more, strict=True)))


NOTHING = Size(0, 0, 0)


def size(messages: Tree) -> Size:
    """The size of the tensors that are sent, one message per client [m, …].

    A Ragged counts its present entries, and in bytes also the client's bitmap.
    """
    if isinstance(messages, dict):
        return reduce(Size.plus, map(size, messages.values()), NOTHING)
    if isinstance(messages, Ragged):
        values, present = messages
        numbers = int(present.sum()) * values.shape[present.dim() :].numel()
        bitmaps = len(present) * -(-present[0].numel() // 8)
    else:
        values, numbers, bitmaps = messages, messages.numel(), 0
    real = values.is_floating_point()
    return Size(numbers * real, numbers * (not real), numbers * values.element_size() + bitmaps)


def bytes_of_each(messages: Tree, clients: int) -> Tensor:
    """The bytes of each client's message [m], which add up to those of `size`; on the CPU, in float64."""
    if isinstance(messages, dict):
        parts = [bytes_of_each(part, clients) for part in messages.values()]
        return reduce(torch.add, parts, torch.zeros(clients, dtype=torch.float64))
    if isinstance(messages, Ragged):
        values, present = messages
        entries = present.reshape(clients, -1).sum(1).cpu().double()
        of_entry = values.shape[present.dim() :].numel() * values.element_size()
        return entries * of_entry + -(-present[:1].numel() // 8)
    of_client = messages.shape[1:].numel() * messages.element_size()
    return torch.full((clients,), of_client, dtype=torch.float64)


def for_each_client(fn: Callable[..., Tree], executor: Executor, *trees: Tree, draws: Draws | None = None) -> Tree:
    """Apply fn to each client's trees and stack the results along the client axis [K, …].

    "stack" runs all clients as one program (torch.func.vmap), "loop" one client after the other, which allows
    breakpoints and is faster for large models on a CPU.  draws: these clients' random numbers, if any.
    """
    clients, draws = leaves(trees)[0].shape[0], draws or Draws()
    if executor == "stack":
        return draws.stacked(fn, clients, *trees)
    results = [draws.alone(fn, k, *(take(tree, k) for tree in trees)) for k in range(clients)]
    return tree_map(lambda *ts: torch.stack(ts), *results)
