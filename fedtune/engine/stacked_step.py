"""One step of many clients as one program: their losses, what these tally, and the gradients of what they train.

Steps of one kind are noted once and replayed after: see `replayed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws
from fedtune.core.trees import Tree, leaves, tree_map
from fedtune.engine.client_scalars import Step, batch_of
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Model, Phase
from fedtune.tracing.replayed import Kind, Replayed, looks, names
from fedtune.tracing.tape import Replay

_REASONS: WeakKeyDictionary[nn.Module, dict[str, None]] = WeakKeyDictionary()

Out = tuple[Tensor, dict[str, Tree], list[Tensor | None]]  # losses [k], tallies, gradients


class StackedStep(Replayed[Out]):
    """The steps of one phase of stacked clients."""

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[..., Any],
        draws: Draws,
        asks: list[str],
        beside: Callable[..., Any] | None = None,
    ) -> None:
        """asks: where it is noted what the loss asks of its client.  beside: a loss that runs between its steps."""
        super().__init__(net, loss, _REASONS.setdefault(net, {}), beside)
        self.draws, self.asks = draws, asks
        self.replay: Replay | None = None
        self.loss = loss

        def of_one(t: dict[str, Tensor], step: Step, received: Tree) -> Any:
            return hooks.loss(loss, loss(Model(net, t, *step[3:4]), batch_of(step, asks), received))

        self.of_one = of_one

    def turn_to(self, clients: dict[str, Tensor], moving: list[Tensor], received: dict[str, Tree]) -> None:
        """From now on these clients [k, …]: their tensors, those among them that are trained, what they received."""
        self.clients, self.moving, self.received = clients, moving, received
        self.now: Kind | None = None
        self.replay = None

    def __call__(self, step: Step) -> Out:
        """Losses, tallies and gradients on a batch of each client."""
        if self.replay is None:
            found = self._found(step)
            if found is not None:
                return found
        assert self.replay and self.now
        with torch.inference_mode():
            return _parted(self.replay(*_fresh(step)), self.now.form)

    def _found(self, step: Step) -> Out | None:
        """The step as vmap and autograd do it; None once there is a replay for it."""
        kind = self.now = self._kind(step)
        if kind is None or kind.unfit:
            return self._eager(step)
        kind.met += 1
        fixed = self._fixed(step)
        if kind.believed:
            assert kind.tape
            self.replay = kind.tape.bind(fixed, kind.given)
            self.asks += kind.asks
            return None
        if kind.met == 1 and not self.like() and len(step) > len(less := _untold(step)):
            others = self._kind(less)  # the steps that follow, unless this one asks
            if others and not others.met and (like := self.like()):
                given = [*self._fixed(less), *_fresh(step)]
                out = self.noted_again(others, like, lambda: self._eager(step), given)
                others.believed &= not self.asks
                return out
            self._kind(step)
        trained = {id(leaf) for leaf in self.moving}
        moving = [i for i, t in enumerate(fixed) if id(t) in trained]
        return self.learned(kind, lambda: self._eager(step), fixed, _fresh(step), moving)

    def flat(self, found: Out) -> list[Tensor | None]:
        """Losses, tallies and gradients in a row."""
        losses, seen, grads = found
        return [losses, *leaves(seen), *grads]

    def remember_form(self, kind: Kind, found: Out) -> None:
        """What the loss tallies, and asks of its client."""
        kind.form, kind.asks = tree_map(lambda t: None, found[1]), [*self.asks]

    def _kind(self, step: Step) -> Kind | None:
        """What is known of such steps; None where they are not to be noted."""
        if self.code is None or self.draws.seen is not False:
            return None
        form = (*self.clients, *map(tuple, map(names, (self.received, step[3:]))))
        trained = tuple(n for n, t in self.clients.items() if t.requires_grad)
        return self.kind(form, looks([*self._fixed(step), *_fresh(step)]), trained)

    def _fixed(self, step: Step) -> list[Tensor]:
        """What stays in place from step to step."""
        return [*self.clients.values(), *leaves(self.received), *leaves(step[3:])]

    def _eager(self, step: Step) -> Out:
        found = self.draws.stacked(self.of_one, len(step[1]), self.clients, step, self.received)
        losses, seen = found if isinstance(found, tuple) else (found, {})
        return losses.detach(), tree_map(Tensor.detach, seen), gradients(self.loss, losses, self.moving)


def steps_of(
    net: nn.Module, phase: Phase, draws: tuple[Draws, Draws], asks: list[str]
) -> tuple[StackedStep, StackedStep | None]:
    """The steps of a phase, and the second ones on each batch if it has such."""
    again = phase.after.loss if phase.after else None
    first = StackedStep(net, phase.loss, draws[0], asks, again)
    return first, StackedStep(net, again, draws[1], asks, phase.loss) if again else None


def reasons(net: nn.Module) -> list[str]:
    """Why steps of this net ran as they stand, those that did."""
    return [*_REASONS.get(net, ())]


def gradients(loss: Callable[..., Any], losses: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """Of each leaf by its own clients' losses: client k's loss [k] reaches only row k.  None for what none reaches.

    Those of sparse lookups come out dense: the optimisers know no others.
    """
    hooks.require_gradient(loss, losses, leaves)
    for leaf in leaves:
        leaf.grad = None
    if leaves:
        losses.sum().backward()
    return [g.to_dense() if (g := leaf.grad) is not None and g.is_sparse else g for leaf in leaves]


def _untold(step: Step) -> Step:
    """The step as code gets it that asks nothing of its client but what it keeps."""
    return step[:4] if any(step[3:4]) else step[:3]


def _fresh(step: Step) -> list[Tensor]:
    """What is new in every step."""
    x, y, noise = step[:3]
    return [x, y, *noise.values()]


def _parted(flat: Sequence[Tensor | None], form: dict[str, Tree]) -> Out:
    losses, *rest = flat
    assert losses is not None
    there = iter(rest)
    seen = tree_map(lambda _: next(there), form) if form else {}
    return losses, seen, [*there]
