"""One step of many clients as one program: their losses, what these tally, and the gradients of what they train.

`vmap` and autograd find out anew in every step which operations that is.  Here they do it a few times for each net,
loss and number of clients; then the operations, as `core.tape` noted them, are run by themselves.  A tape is believed
once it gave, on another batch, every bit that vmap and autograd gave.  Noted is code that looks at nothing but its
tensors and what is in its key: ours at its own fields, an author's at what `own_steps` finds.  Code that may count,
print or read what changes runs as it stands in every step.  So does what draws random numbers while it runs, as their
addresses count the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws
from fedtune.core.errors import UserError
from fedtune.core.recording import Given, Recorder
from fedtune.core.tape import Replay, Tape, Unfit
from fedtune.core.trees import Tree, leaves, tree_map
from fedtune.federated.algorithm import Model, Phase
from fedtune.federated.asked import Step, batch_of
from fedtune.federated.own_steps import Watch
from fedtune.federated.step_identity import Applied, identity

MET = 3  # steps of one kind before one is noted: noting costs as much as three, and saves half of one
KINDS = 256  # of steps remembered for a net
MISFITS = 3  # times that code with other numbers may be other operations before it is left as it stands

Out = tuple[Tensor, dict[str, Tree], list[Tensor | None]]  # losses [k], tallies, gradients


class Kind:
    """Steps that are alike in code, shapes and memory orders: how many were met, and their tape."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.met, self.misfits, self.believed, self.unfit = 0, 0, False, False
        self.tape: Tape | None = None
        self.given: Given | None = None  # constants and numbers of a tape that was noted of the same code with others
        self.tally: dict[str, Tree] = {}  # the form of what the loss tallies
        self.asks: list[str] = []


_KINDS: WeakKeyDictionary[nn.Module, dict[Hashable, Kind]] = WeakKeyDictionary()
_CODES: WeakKeyDictionary[nn.Module, dict[Hashable, Hashable]] = WeakKeyDictionary()
_REASONS: WeakKeyDictionary[nn.Module, dict[str, None]] = WeakKeyDictionary()


class StackedStep:
    """The steps of one phase of stacked clients."""

    def __init__(
        self, net: nn.Module, loss: Callable[..., Any], draws: Draws, asks: list[str],
        beside: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        """asks: where it is noted what the loss asks of its client.  beside: a loss that runs between its steps."""
        self.draws, self.asks = draws, asks
        self.identify = lambda: identity(loss, net)
        mine = self.identify()
        self.code, self.own, self.form, why, _ = mine
        if beside and ((other := identity(beside, net)).code is None or mine.changeable or other.changeable):
            self.code, why = None, why or other.why or "client code could change what the loss beside it reads"
        self.codes = _CODES.setdefault(net, {})
        if len(self.codes) >= KINDS:
            self.codes.clear()
        if self.form is not None and self.form in self.codes:
            self.code = None  # it was found out before
        self.code = self.codes.setdefault(self.code, self.code)  # the one that was met before, which is found faster
        self.reasons = _REASONS.setdefault(net, {})
        if why:
            self.reasons[why] = None
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
        recorder, out = self._watched(step, [*fixed, *fresh])
        trained = {id(leaf) for leaf in self.moving}
        moving = [i for i, t in enumerate(fixed) if id(t) in trained]
        try:
            kind.tape = Tape(recorder, len(fixed), len(fresh), moving, _flat(out))
        except Unfit as error:
            kind.unfit = True
            self.reasons[str(error)] = None
        kind.tally, kind.asks = tree_map(lambda t: None, out[1]), [*self.asks]
        return out

    def _noted_again(self, kind: Kind, like: Kind, step: Step, fixed: list[Tensor]) -> Out:
        """The step of code whose tape there is but for its numbers, as in a round with other weights; and these."""
        recorder, out = self._watched(step, [*fixed, *_fresh(step)])
        assert like.tape
        if like.tape.fits(recorder, _flat(out)):
            kind.tape, kind.given, kind.tally, kind.asks = like.tape, recorder.given(), like.tally, like.asks
            kind.believed = True
        else:
            like.misfits += 1
            kind.unfit = like.misfits > MISFITS
        return out

    def _watched(self, step: Step, given: list[Tensor]) -> tuple[Recorder, Out]:
        """The step and its operations; an author's code must run nothing, and change nothing, that is not known."""
        if self.own is None:
            with (recorder := Recorder(given)):
                return recorder, self._eager(step)
        with (watch := Watch(self.own)), (recorder := Recorder(given)):
            out = self._eager(step)
        if not watch.stranger and self.identify().code != self.code:
            watch.stranger = "changes what it reads"
        if watch.stranger:
            self.codes[self.form] = None
        recorder.unfit = f"client code {watch.stranger}" if watch.stranger else recorder.unfit
        return recorder, out

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
            kind.misfits = self.kinds[self.family].misfits if self.family in self.kinds else 0
            self.kinds[self.family] = kind
        return out


def steps_of(
    net: nn.Module, phase: Phase, draws: tuple[Draws, Draws], asks: list[str]
) -> tuple[StackedStep, StackedStep | None]:
    """The steps of a phase, and the second ones on each batch if it has such."""
    again = phase.after.loss if phase.after else None
    first = StackedStep(net, phase.loss, draws[0], asks, again)
    return first, StackedStep(net, again, draws[1], asks, phase.loss) if again else None


def gradients(losses: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """Of each leaf by its own clients' losses: client k's loss [k] reaches only row k.  None for what none reaches."""
    if not isinstance(losses, Tensor):
        raise UserError(f"a loss is one number, a tensor [], but this algorithm's is a {type(losses).__name__}")
    for leaf in leaves:
        leaf.grad = None
    if leaves:
        losses.sum().backward()
    return [leaf.grad for leaf in leaves]


def reasons(net: nn.Module) -> list[str]:
    """Why steps of this net ran as they stand, those that did."""
    return [*_REASONS.get(net, ())]


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
