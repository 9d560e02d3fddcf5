"""One run's round in progress: what the server and the participating clients hold, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedtune.core import metrics, randomness
from fedtune.core.errors import Diverged
from fedtune.core.trees import NOTHING, Size, Tree, is_shared, join, leaves, size, take
from fedtune.data.federation import Federation, rows_by_class
from fedtune.engine.local_training import PhaseResult
from fedtune.engine.state import Group, RunSetup, State, no_steps, received
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import part_of

Result = TypeVar("Result")


def participants(s: RunSetup, t: int) -> Tensor:
    """The clients of round t, ascending; drawn without replacement from the round's own stream."""
    order = torch.randperm(s.task.clients, generator=randomness.stream(s.task.seed, "participants", t))
    return order[: s.scenario.participants].sort().values.to(s.federation.x.device)


class RunningRound:
    """A round in progress: the server's entries, and its clients with what they received and tallied last."""

    def __init__(self, run: int, s: RunSetup, state: State, t: int) -> None:
        """Select the clients of round t from each group.  run: its position among the seeds."""
        self.run, self.s, self.t, self.task, self.server = run, s, t, s.task_in(t), state.server
        taking_part = participants(s, t)
        self.positions = [torch.isin(g.ids, taking_part).nonzero()[:, 0] for g in state.groups]
        self.groups = [g.at(index) for g, index in zip(state.groups, self.positions, strict=True)]
        self.active_groups = [i for i, g in enumerate(self.groups) if len(g.ids)]
        self.down: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.tallies: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.kept = [g.kept for g in self.groups]  # replaced by what `remember` returns
        # what client code knows about its client; no step is made before the round's first phase
        self.clients = [
            no_steps(s, g.net, g.ids)._replace(kept=g.kept, counts=rows_by_class(s.federation, g.ids))
            for g in self.groups
        ]
        self.ups: dict[int, dict[str, Tree]] = {}  # per group, until the server has aggregated it
        self.up_size, self.down_size = NOTHING, NOTHING
        self.losses: list[Tensor] = []  # one tensor per group of the current phase
        self.train_loss: float | None = None  # the mean loss of the first phase
        self.phase = 0  # counts training phases only, so that draws do not depend on what is exchanged
        self.lost: Diverged | None = None  # how it diverged

    @contextmanager
    def until_lost(self) -> Iterator[None]:
        """Record if the run diverges here; the rest of the round is then skipped."""
        try:
            yield
        except Diverged as error:
            self.lost = error

    def send_down(self) -> None:
        """The server sends, and clients replace the tensors that they receive."""
        with self.until_lost():
            for i in self.active_groups:
                g = self.groups[i]
                self.down[i] = hooks.broadcast(self.s.algorithm, "broadcast", self.server, g.ids, self.task)
                self.down_size = self.down_size.plus(size(self.down[i]))
                self.groups[i] = g._replace(tensors=received(self.s, g, self.down[i]))

    def take_training(self, i: int, done: PhaseResult | Diverged) -> None:
        """Store the result of a phase for a group's clients."""
        with self.until_lost():
            done = _finite(done)
            g, frozen = self.groups[i], self.s.scenario.frozen
            moved = {n: t for n, t in done.tensors.items() if part_of(n) not in frozen}  # frozen tensors stay views
            self.groups[i] = g._replace(tensors=g.tensors | moved)
            self.losses.append(done.losses)
            self.tallies[i], self.clients[i] = done.tally or self.tallies[i], done.client
            require_finite(self.t, self.s.federation, g.ids, done.losses, {}, {})

    def end_phase(self) -> None:
        """Note the phase's loss, after all groups have trained."""
        if not self.lost:
            self.train_loss = torch.cat(self.losses).mean().item() if self.train_loss is None else self.train_loss
        self.losses, self.phase = [], self.phase + 1

    def take_upload(self, i: int, result: dict[str, Tree] | Diverged) -> None:
        """Store what a group's clients send and keep."""
        with self.until_lost():
            result = _finite(result)
            self.ups[i], self.kept[i] = result["up"], result["kept"]

    def take_in(self) -> None:
        """The server aggregates the uploads, in the order of client numbers."""
        if self.lost:
            return
        ups = []
        for i in self.active_groups:
            g, up = self.groups[i], self.ups.get(i, {})
            if self.s.algorithm.shared:
                rows = self.s.federation.train.counts[g.ids]
                up = {"shared": {n: g.tensors[n] for n in self.server["shared"]}, "rows": rows} | up
            ups.append(up)
        self.ups = {}
        self.up_size = reduce(Size.plus, map(size, ups), self.up_size)
        ids = torch.cat([self.groups[i].ids for i in self.active_groups])
        with self.until_lost():
            uploads = take(join(ups) | {"ids": ids}, ids.argsort())
            entries = self.s.algorithm.aggregate(self.server, uploads, self.task)
            self.server = hooks.entries(self.s.algorithm, "aggregate", entries, self.server)

    def end(self, state: State) -> tuple[State, dict[str, Any]] | Diverged:
        """The new state and the round's metrics, or how it diverged."""
        with self.until_lost():
            if not self.lost:
                self._require_finite()
        if self.lost:
            return self.lost
        total = state.bytes + self.up_size.bytes + self.down_size.bytes
        row = {"train_loss": self.train_loss} | metrics.communication(self.up_size, self.down_size, total)
        row |= hooks.reported(self.s.algorithm, self.s.algorithm.report(self.server))
        return State(self.server, self._merged(state.groups), self.t, total), row

    def _require_finite(self) -> None:
        """Diverged unless all parameters, all that clients keep and all server entries are finite."""
        for i in self.active_groups:
            g = self.groups[i]
            require_finite(self.t, self.s.federation, g.ids, torch.zeros(1), g.tensors, self.kept[i])
        lost = [n for n, tree in self.server.items() if not all(v.isfinite().all() for v in leaves(tree))]
        if lost:
            raise Diverged(f"diverged in round {self.t}: the server's {', '.join(lost)} became NaN or infinite")

    def _merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """All groups, with the tensors and the kept values of the clients that took part."""
        return tuple(
            old._replace(tensors=_back(old.tensors, index, g.tensors), kept=_back(old.kept, index, kept))
            for old, index, g, kept in zip(groups, self.positions, self.groups, self.kept, strict=True)
        )


def _back(old: Tree, at: Tensor, new: Tree) -> Tree:
    """Replace some clients' tensors in a group, in place, so that clients that do not take part cost nothing.

    Only frozen tensors stay shared; those that all clients of a group received and keep untrained are copied here.
    """
    if isinstance(old, dict):
        return {n: _back(t, at, new[n]) for n, t in old.items()}
    if isinstance(old, tuple):
        return type(old)(*(_back(*pair) for pair in zip(old, [at] * len(old), new, strict=True)))
    if is_shared(old):
        return old
    if len(at) < len(old):
        return old.index_copy_(0, at, new)
    return new.clone() if is_shared(new) else new


def require_finite(t: int, f: Federation, ids: Tensor, losses: Tensor, tensors: Tree, kept: Tree) -> None:
    """Diverged, with round and clients, unless every loss [K_g], every parameter and every kept value is finite."""
    fine = {"loss": losses.isfinite().to(ids.device).expand(len(ids))}
    for name, tree in (("parameters", tensors), ("memory", kept)):
        reals = [v.reshape(len(v), -1).isfinite().all(1) for v in leaves(tree) if v.is_floating_point()]
        fine[name] = torch.stack(reals).all(0) if reals else fine["loss"]
    for name, ok in fine.items():
        if not ok.all():
            ids_lost = ids[~ok].tolist()
            whose = f"{f.who(ids_lost[0])}'s {name}"
            if len(ids_lost) > 1:
                whose = f"the {name} of {len(ids_lost)} clients ({f.some(ids_lost)})"
            raise Diverged(f"diverged in round {t}: {whose} became NaN or infinite")


def _finite(result: Result | Diverged) -> Result:
    """The result, or raise if it is Diverged."""
    if isinstance(result, Diverged):
        raise result
    return result
