"""One step of many clients as one program: their losses, what these tally, and the gradients of what they train.

`vmap` and autograd find out anew in every step which operations that is.  Here they do it a few times for each net,
loss and number of clients; then the operations, as `core.tape` noted them, are run by themselves.  A tape is believed
once it gave, on another batch, every bit that vmap and autograd gave.  Noted is code of ours alone, which looks at
nothing but its tensors and its own fields: an author's may count, print or read what changes, and runs as it stands in
every step.  So does what draws random numbers while it runs, as their addresses count the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws
from fedtune.core.recording import Given, Recorder
from fedtune.core.tape import Replay, Tape, Unfit
from fedtune.core.trees import Tree, leaves, tree_map
from fedtune.federated.algorithm import Model
from fedtune.federated.asked import Step, batch_of

MET = 3  # steps of one kind before one is noted: noting costs as much as three, and saves half of one
KINDS = 256  # of steps remembered for a net

Out = tuple[Tensor, dict[str, Tree], list[Tensor | None]]  # losses [k], tallies, gradients


class Kind:
    """Steps that are alike in code, shapes and memory orders: how many were met, and their tape."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.met, self.believed, self.unfit = 0, False, False
        self.tape: Tape | None = None
        self.given: Given | None = None  # constants and numbers of a tape that was noted of the same code with others
        self.tally: dict[str, Tree] = {}  # the form of what the loss tallies
        self.asks: list[str] = []


class Applied(NamedTuple):
    """Code with its first arguments, such as a loss that knows the round."""

    code: Hashable
    arguments: tuple[Any, ...]


_KINDS: WeakKeyDictionary[nn.Module, dict[Hashable, Kind]] = WeakKeyDictionary()


class StackedStep:
    """The steps of one phase of stacked clients."""

    def __init__(self, net: nn.Module, loss: Callable[..., Any], draws: Draws, asks: list[str]) -> None:
        """asks: where it is noted what the loss asks of its client."""
        self.draws, self.asks = draws, asks
        self.code = identity(loss) if all(map(_ours, {type(m) for m in net.modules()})) else None
        self.modes = tuple(part.training for part in net.children())
        self.kinds = _KINDS.setdefault(net, {})
        self.replay: Replay | None = None
        self.of_one = lambda t, step, received: loss(Model(net, t), batch_of(step, asks), received)

    def turn_to(self, clients: dict[str, Tensor], moving: list[Tensor], received: dict[str, Tree]) -> None:
        """From now on these clients [k, …]: their tensors, those among them that are trained, what they received."""
        self.clients, self.moving, self.received = clients, moving, received
        self.kind: Kind | None = None
        self.family: Hashable | None = None
        self.replay = None

    def __call__(self, step: Step) -> Out:
        """Losses, tallies and gradients on a batch of each client."""
        if self.replay is None:
            found = self._found(step)
            if found is not None:
                return found
        assert self.replay and self.kind
        with torch.inference_mode():
            return _parted(self.replay(*_fresh(step)), self.kind.tally)

    def _found(self, step: Step) -> Out | None:
        """The step as vmap and autograd do it; None once there is a replay for it."""
        kind = self.kind = self._kind(step)
        if kind is None or kind.unfit:
            return self._eager(step)
        kind.met += 1
        fixed = self._fixed(step)
        if kind.believed:
            assert kind.tape
            self.replay = kind.tape.bind(fixed, kind.given)
            self.asks += kind.asks
            return None
        if kind.tape:
            return self._tried(kind, step, fixed)
        if kind.met == 1 and self.family in self.kinds:
            return self._noted_again(kind, self.kinds[self.family], step, fixed)
        return self._noted(kind, step, fixed) if kind.met >= MET else self._eager(step)

    def _kind(self, step: Step) -> Kind | None:
        """What is known of such steps; None where they are not to be noted."""
        if self.code is None or self.draws.seen is not False:
            return None
        tensors = [*self._fixed(step), *_fresh(step)]
        looks = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        names = (*self.clients, *map(tuple, map(_names, (self.received, step[3:]))))
        trained = tuple(n for n, t in self.clients.items() if t.requires_grad)
        rest = (self.modes, names, looks, trained)
        if len(self.kinds) >= KINDS:
            self.kinds.clear()
        kind = self.kinds.setdefault((self.code, *rest), Kind())
        self.family = (self.code.code, *rest) if isinstance(self.code, Applied) else None
        return kind

    def _fixed(self, step: Step) -> list[Tensor]:
        """What stays in place from step to step."""
        return [*self.clients.values(), *leaves(self.received), *leaves(step[3:])]

    def _eager(self, step: Step) -> Out:
        found = self.draws.stacked(self.of_one, len(step[1]), self.clients, step, self.received)
        losses, seen = found if isinstance(found, tuple) else (found, {})
        return losses.detach(), tree_map(Tensor.detach, seen), gradients(losses, self.moving)

    def _noted(self, kind: Kind, step: Step, fixed: list[Tensor]) -> Out:
        """The step, and its tape."""
        fresh = _fresh(step)
        with (recorder := Recorder([*fixed, *fresh])):
            out = self._eager(step)
        trained = {id(leaf) for leaf in self.moving}
        moving = [i for i, t in enumerate(fixed) if id(t) in trained]
        try:
            kind.tape = Tape(recorder, len(fixed), len(fresh), moving, _flat(out))
        except Unfit:
            kind.unfit = True
        kind.tally, kind.asks = tree_map(lambda t: None, out[1]), [*self.asks]
        return out

    def _noted_again(self, kind: Kind, like: Kind, step: Step, fixed: list[Tensor]) -> Out:
        """The step of code whose tape there is but for its numbers, as in a round with other weights; and these."""
        with (recorder := Recorder([*fixed, *_fresh(step)])):
            out = self._eager(step)
        assert like.tape
        if like.tape.fits(recorder, _flat(out)):
            kind.tape, kind.given, kind.tally, kind.asks = like.tape, recorder.given(), like.tally, like.asks
            kind.believed = True
        return out

    def _tried(self, kind: Kind, step: Step, fixed: list[Tensor]) -> Out:
        """The step, and whether the tape gives the same."""
        assert kind.tape
        held = {i: t.detach().clone() for i, t in enumerate(fixed) if 0 not in t.stride()}  # what can be written into
        with torch.inference_mode():
            tried = kind.tape.bind([held.get(i, t) for i, t in enumerate(fixed)])(*_fresh(step))
        out = self._eager(step)
        pairs = [*zip(tried, _flat(out), strict=True), *((t, fixed[i]) for i, t in held.items())]
        kind.believed = all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)
        kind.unfit = not kind.believed
        if kind.believed and self.family:
            self.kinds[self.family] = kind
        return out


def gradients(losses: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """Of each leaf by its own clients' losses: client k's loss [k] reaches only row k.  None for what none reaches."""
    for leaf in leaves:
        leaf.grad = None
    if leaves:
        losses.sum().backward()
    return [leaf.grad for leaf in leaves]


def identity(code: Any) -> Hashable | None:
    """What tells code of ours from other code, its fields and arguments with it; None for what may depend on more."""
    if isinstance(code, partial):
        inner = identity(code.func)
        return None if inner is None or code.keywords else _hashed(Applied(inner, code.args))
    if isinstance(code, MethodType):
        return _hashed((code.__func__, code.__self__)) if _ours(type(code.__self__)) else None
    return code if isinstance(code, FunctionType) and _ours(code) and not code.__closure__ else None


def _hashed(value: Hashable) -> Hashable | None:
    try:
        hash(value)
    except TypeError:
        return None
    return value


def _ours(thing: Any) -> bool:
    """Whether a class or function is fedtune's or PyTorch's."""
    return thing.__module__.split(".")[0] in ("fedtune", "trainables", "torch", "torchvision")


def _fresh(step: Step) -> list[Tensor]:
    """What is new in every step."""
    x, y, noise = step[:3]
    return [x, y, *noise.values()]


def _names(tree: Tree) -> Iterator[str]:
    """The form of a tree."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield name
            yield from _names(part)
    elif isinstance(tree, tuple):
        yield type(tree).__name__
        for part in tree:
            yield from _names(part)
    yield ""


def _flat(out: Out) -> list[Tensor | None]:
    losses, seen, grads = out
    return [losses, *leaves(seen), *grads]


def _parted(flat: Sequence[Tensor | None], tally: dict[str, Tree]) -> Out:
    losses, *rest = flat
    assert losses is not None
    there = iter(rest)
    seen = tree_map(lambda _: next(there), tally) if tally else {}
    return losses, seen, [*there]
