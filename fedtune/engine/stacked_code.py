"""Client code of many clients as one program: steps of training, and code that handles each row by itself.

Calls are recorded and replayed: see `tracing`.  Now and then a step of a user's is compared with a client's alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedtune import tracing
from fedtune.core.draws import Draws
from fedtune.core.trees import Executor, Tree, for_each_client, leaves, take, tree_map
from fedtune.engine.client_errors import Unstackable, located
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Batch, Model
from fedtune.tracing import CacheEntry, Calls

_REASONS: WeakKeyDictionary[nn.Module, dict[str, None]] = WeakKeyDictionary()
_EAGER_STEPS: WeakKeyDictionary[nn.Module, Counter[Any]] = WeakKeyDictionary()
SELDOM = 512  # steps between two comparisons, in the end

Out = tuple[Tensor, dict[str, Tree], list[Tensor | None]]  # losses [k], tallies, gradients


class StackedStep(Calls[Out]):
    """The steps of one phase of stacked clients."""

    def __init__(self, net: nn.Module, loss: Callable[..., Any], draws: Draws) -> None:
        """The loss for one client; draws: what it draws."""
        super().__init__(net, loss, _REASONS.setdefault(net, {}))
        self.net, self.loss, self.draws = net, loss, draws
        self.run: Callable[..., Out] | None = None

        def of_one(t: dict[str, Tensor], batch: Batch, received: Tree) -> Any:
            return hooks.loss(loss, loss(Model(net, t, batch.client.kept), batch, received))

        self.of_one = of_one

    def turn_to(self, clients: dict[str, Tensor], moving: list[Tensor], received: dict[str, Tree]) -> None:
        """Continue with these clients [k, …]: their tensors, the trained ones among them, and received messages."""
        self.clients, self.moving, self.received = clients, moving, received
        self.current: CacheEntry | None = None
        self.run = None

    def __call__(self, batch: Batch) -> Out:
        """Losses, tallies and gradients on a batch of each client, which all have the client axis in front."""
        if self.run is None:
            entry = self.current = self._entry(batch)
            if entry is None or entry.untraceable:
                # now and then the first and the last client's step is run alone, too
                return self._eager(batch) if self.is_fedtune or not self._is_due() else self.compared_alone(batch)
            entry.calls_seen += 1
            if not entry.verified:
                trained = {id(leaf) for leaf in self.moving}
                moving = [i for i, t in enumerate(self.fixed) if id(t) in trained]
                return self.record(entry, lambda: self._eager(batch), self.fixed, _fresh(batch), moving)
            self.run = self.replay(entry, self.fixed)
        assert self.current
        if self.is_due(self.current):
            out = self.compare(self.current, lambda: self._eager(batch), self.fixed, _fresh(batch))
            self.run = self.run if self.current.verified else None
            return out
        with torch.inference_mode():
            return self.run(*_fresh(batch))

    def _entry(self, batch: Batch) -> CacheEntry | None:
        """The cache entry of such steps; None if they are not recorded."""
        if self.code is None or self.draws.is_random is not False:
            return None
        self.fixed = [*self.clients.values(), *leaves(self.received), *leaves(batch.client)]  # they stay in place
        form = (*self.clients, *map(tuple, map(tracing.names, (self.received, batch.client))))
        trained = tuple(n for n, t in self.clients.items() if t.requires_grad)
        return self.entry(form, tracing.metadata([*self.fixed, *_fresh(batch)]), trained)

    def _eager(self, batch: Batch) -> Out:
        out = self.draws.stacked(self.of_one, len(batch.y), self.clients, batch, self.received)
        losses, tally = out if isinstance(out, tuple) else (out, {})
        return losses.detach(), tree_map(Tensor.detach, tally), gradients(self.loss, losses, self.moving)

    def compared_alone(self, batch: Batch, apart: float = 1e-2) -> Out:
        """The step, not recorded; Unstackable unless it is that of the first and of the last client alone.

        apart: the most by which numbers may differ, as a share of the largest.
        """
        before = self.draws.position()
        copies = {k: tree_map(lambda t: t.detach().clone(), take(self.clients, k)) for k in {0, len(batch.y) - 1}}
        out = self._eager(batch)
        after = self.draws.position()
        for client, tensors in copies.items():
            self.draws.return_to(before)
            self._require_same_alone(client, tensors, batch, out, apart)
        self.draws.return_to(after)
        return out

    def _is_due(self) -> bool:
        """Count an eager step of this code on this net; whether to compare it: 2, 4, 8 … 512, and every 512th."""
        counts = _EAGER_STEPS.setdefault(self.net, Counter())
        counts[self.draws.code] += 1  # each loss has a count of its own: they take turns
        n = counts[self.draws.code]
        return n % SELDOM == 0 or (1 < n < SELDOM and not n & (n - 1))

    def _require_same_alone(
        self, client: int, tensors: dict[str, Tensor], batch: Batch, stacked: Out, apart: float
    ) -> None:
        """Unstackable unless a client's loss and gradients are those of the same code run for this client alone."""
        names = {id(t): n for n, t in self.clients.items()}
        leaves = [tensors[names[id(leaf)]].requires_grad_() for leaf in self.moving]
        found = self.draws.alone(self.of_one, client, tensors, take(batch, client), take(self.received, client))
        loss = found[0] if isinstance(found, tuple) else found
        alone = [loss.detach(), *torch.autograd.grad(loss, leaves, allow_unused=True)] if leaves else [loss.detach()]
        for one, all_of in zip(alone, [stacked[0], *stacked[2]], strict=True):
            if one is not None and all_of is not None and _apart(all_of[client], one, apart):
                what = "gives a client another loss or gradient than the same code run for this client alone"
                raise Unstackable("it", what, "let no number depend on other clients, or on how the code is run")


def _apart(one: Tensor, other: Tensor, share: float) -> bool:
    """Whether two tensors differ by more than rounding; where one is not finite, training tells."""
    one, other = one.double(), other.to_dense().double()
    if not (one.isfinite().all() and other.isfinite().all()):
        return False
    return bool((one - other).abs().amax() > share * other.abs().amax() + 1e-5) if one.numel() else False


def reasons(net: nn.Module) -> list[str]:
    """The reasons why steps of this net ran eagerly."""
    return [*_REASONS.get(net, ())]


def gradients(loss: Callable[..., Any], losses: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradient of each leaf: client k's loss [k] affects only row k.  None for a leaf that no loss depends on.

    Sparse gradients are made dense, because the optimisers accept no others.
    """
    hooks.require_gradient(loss, losses, leaves)
    for leaf in leaves:
        leaf.grad = None
    if leaves:
        losses.sum().backward()
    return [g.to_dense() if (g := leaf.grad) is not None and g.is_sparse else g for leaf in leaves]


def _fresh(batch: Batch) -> list[Tensor]:
    """The arguments that differ in every step."""
    return [batch.x, batch.y, *batch.eps.values()]


class StackedRows(Calls[Tree]):
    """Code whose results have an entry [N, …] for each of a client's N rows, run for many clients."""

    def __init__(
        self,
        *,
        net: nn.Module,
        executor: Executor,
        of_one: Callable[..., Tree],
        code: Callable[..., Any],
        key: Hashable,
        draws: Draws,
    ) -> None:
        """of_one(tensors, received, rows): calls client code.  key: everything else that its result depends on."""
        super().__init__(net, code, {})
        self.executor, self.of_one, self.key, self.draws = executor, of_one, key, draws

    def __call__(self, clients: dict[str, Tensor], received: Tree, rows: dict[str, Tensor]) -> Tree:
        """The code's results for clients' tensors [k, …], received messages [k, …] and rows [k, N, …]."""

        def alone(k: int) -> Tree:
            return self.draws.alone(self.of_one, k, *(take(tree, k) for tree in (clients, received, rows)))

        return located(lambda: self._run(clients, received, rows), alone, len(leaves(rows)[0]))

    def _run(self, clients: dict[str, Tensor], received: Tree, rows: dict[str, Tensor]) -> Tree:
        arguments = (clients, received, rows)

        def run() -> Tree:
            return for_each_client(self.of_one, self.executor, *arguments, draws=self.draws)

        if self.executor == "loop" or self.code is None or self.draws.is_random is not False:
            return run()
        fixed, fresh = [*leaves(clients), *leaves(received)], [*rows.values()]
        entry = self.entry(self.key, tuple(tracing.names(arguments)), tracing.metadata([*fixed, *fresh]))
        entry.calls_seen += 1
        if entry.verified:
            if self.is_due(entry):
                return self.compare(entry, run, fixed, fresh)
            with torch.no_grad():
                return self.replay(entry, fixed)(*fresh)
        # all tensors are declared as moving, so that nothing is computed in advance and held
        return self.record(entry, run, fixed, fresh, range(len(fixed)))
