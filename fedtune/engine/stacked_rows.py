"""Code that handles each row of a client by itself, for many clients, recorded and replayed as steps are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedtune import tracing
from fedtune.core.draws import Draws
from fedtune.core.trees import Executor, Tree, for_each_client, leaves, take, tree_map
from fedtune.engine.blame import located
from fedtune.tracing import CacheEntry, Calls


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
                tensors = iter(self.replay(entry, fixed)(*fresh))
            return tree_map(lambda _: next(tensors), entry.form)
        # all tensors are declared as moving, so that nothing is computed in advance and held
        return self.record(entry, run, fixed, fresh, range(len(fixed)))

    def flat(self, result: Tree) -> list[Tensor | None]:
        """The result's tensors."""
        return [*leaves(result)]

    def remember_form(self, entry: CacheEntry, result: Tree) -> None:
        """Store the structure of the result."""
        entry.form = tree_map(lambda t: None, result)


def order_of(t: Tensor) -> list[int]:
    """A tensor's axes, the one with the longest stride first."""
    return sorted(range(t.dim()), key=t.stride, reverse=True)


def in_order(axes: list[int], shape: Sequence[int], template: Tensor) -> Tensor:
    """An empty tensor with this memory order: the last bits of later results depend on it."""
    tensor = template.new_empty([shape[i] for i in axes])
    return tensor.permute(*(axes.index(i) for i in range(len(axes))))
