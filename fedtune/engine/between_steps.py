"""A phase at work, and what it does besides its steps: it sets tensors before and after them, and may stop clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws, streams_of
from fedtune.core.trees import Tree, take, tree_map
from fedtune.engine.batches import BatchPlan
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Client, Model, Phase, part_of, parts
from fedtune.experiment.phase import Setter
from fedtune.experiment.scenario import Scenario

# runs client code for one client or many; the number selects the random draws
Run = Callable[..., Tree]
BEGIN, PROJECT = 0, 1
Tensors = dict[str, Tensor]


class Job(NamedTuple):
    """One phase of local training, as executors get it."""

    net: nn.Module  # the structure, its parts in train or eval mode
    phase: Phase
    work: Scenario
    cooled: float  # the decay factor of the clients' learning rate so far
    x: Tensor  # [R, …] the rows that the plan refers to
    y: Tensor  # [R]
    plan: BatchPlan
    trained: tuple[str, ...]  # the parts that are trained
    client: Client  # with a client axis
    streams: list[torch.Generator]  # one per client, at the client's address in this phase
    draws: tuple[Draws, Draws, Draws, Draws]  # of step, second step, begin, project

    def begin(self, order: Sequence[int]) -> tuple[Draws, Draws, Draws, Draws]:
        """The random draws of a phase's code for these clients, from the beginning of their streams."""
        mine = [self.streams[k] for k in order]
        for draws, purpose in zip(self.draws, ("draws", "draws again", "draws begin", "draws project"), strict=True):
            draws.begin(streams_of(mine, purpose))
        return self.draws

    def of(self, part: slice) -> Job:
        """The same for some of the clients."""
        steps, rows, eps, ends = self.plan
        todo = BatchPlan(steps[part], rows[part], take(eps, part), ends[part])
        return self._replace(plan=todo, client=take(self.client, part), streams=self.streams[part])


class BetweenSteps:
    """A phase's setters, and which clients have stopped; for many clients with a client axis, or for one without."""

    def __init__(self, job: Job, ends: Tensor, run: Run) -> None:
        """ends [m, S]: the last step of each pass, of these clients.  run: runs client code for them."""
        self.net, self.phase, self.trained, self.run = job.net, job.phase, job.trained, run
        net, phase, trained, self.real = job.net, job.phase, job.trained, job.client.lr.dtype
        self.first = self._setter(phase.begin, job.work.frozen) if phase.begin else None
        self.each = self._setter(phase.project, {*parts(net)} - {*trained}) if phase.project else None
        self.stops = Stops(ends, phase.window) if phase.until else None
        ranges = {n: phase.bounds.get(part_of(n)) for n, _ in net.named_parameters() if part_of(n) in trained}
        self.bounds = {n: given for n, given in ranges.items() if given}

    def _setter(self, code: Setter, but: Collection[str]) -> Callable[..., Tensors]:
        """Wrap a setter to check its result; parts in `but` must not be set."""

        def of_one(t: Tensors, received: dict[str, Tree], kept: dict[str, Tree]) -> Tensors:
            return hooks.set_tensors(code, code(Model(self.net, t, kept), received), self.net, self.real, but)

        return of_one

    def _asked(self, t: Tensors, kept: dict[str, Tree], losses: Tensor) -> Tensor:
        assert self.phase.until
        return hooks.stop(self.phase.until, self.phase.until(losses, Model(self.net, t, kept)))

    def begin(self, mine: Tensors, received: dict[str, Tree], kept: dict[str, Tree]) -> BetweenSteps:
        """Set tensors before the first step, in place."""
        if self.first:
            with torch.no_grad():
                _put(mine, self.run(BEGIN, self.first, mine, received, kept))
        return self

    def counted(self, losses: Tensor, seen: dict[str, Tree]) -> tuple[Tensor, dict[str, Tree]]:
        """Losses and tallies of a step, with zeros for clients that have stopped."""
        return (self.stops.counted(losses), self.stops.counted(seen)) if self.stops else (losses, seen)

    def over(
        self, step: int, losses: Tensor, now: Tensors, received: dict[str, Tree], kept: dict[str, Tree], mine: Tensors
    ) -> bool:
        """Set tensors after a step, in place; whether all active clients have stopped.

        losses: as counted, [k].  mine: the tensors of all clients; `now` are those of the active ones.
        """
        for n, (least, most) in self.bounds.items():
            now[n].detach().clamp_(least, most)
        if not (self.each or self.stops):
            return False
        whole = {n: t.detach() for n, t in now.items()}
        with torch.no_grad():
            if self.each:
                _put(whole, self.run(PROJECT, self.each, whole, received, kept))
            if not self.stops:
                return False
            moved = {n: t for n, t in mine.items() if part_of(n) in self.trained}

            def asked(latest: Tensor) -> Tensor:
                if mine:
                    return torch.func.vmap(self._asked)(whole, kept, latest)
                return self._asked(whole, kept, latest[0])[None]

            return self.stops.all_have(step, losses, asked, moved)

    def end(self, mine: Tensors, steps: Tensor) -> Tensor:
        """Restore each client's tensors from when it stopped; returns how many of `steps` each client made."""
        if not self.stops:
            return steps
        for at, held in self.stops.held:
            for n, t in held.items():
                mine[n][at] = t
        return self.stops.made


def _put(tensors: Tensors, new: Tensors) -> None:
    """Write values into the tensors of these names; all are computed before the first is written."""
    for n, t in [(n, t.clone()) for n, t in new.items()]:
        tensors[n].copy_(t)


class Stops:
    """Early stopping: the recent losses of clients [m] that may stop."""

    def __init__(self, ends: Tensor, window: int) -> None:
        """ends [m, S]: the last step of each pass.  window: the number of passes that are considered."""
        m = len(ends)
        self.ends = ends
        self.done = torch.zeros(m, dtype=torch.bool, device=ends.device)
        self.made = torch.zeros(m, dtype=torch.int64, device=ends.device)  # steps
        self.latest = torch.full((m, window), torch.nan, dtype=torch.float64, device=ends.device)
        self.sum, self.count = torch.zeros_like(self.latest[:, 0]), torch.zeros_like(self.made)
        self.held: list[tuple[Tensor, dict[str, Tensor]]] = []  # who stopped, with their tensors then

    def counted(self, tree: Tree) -> Tree:
        """Losses and tallies of the first k clients, with zeros for clients that have stopped."""
        return tree_map(lambda t: torch.where(self.done[: len(t)].view(-1, *[1] * (t.dim() - 1)), 0, t), tree)

    def all_have(self, step: int, losses: Tensor, asked: Callable[[Tensor], Tensor], mine: dict[str, Tensor]) -> bool:
        """After this step of the first k clients, with their losses as counted: whether all of them have stopped.

        asked: which stop, given the losses of the latest passes.  mine: tensors to freeze when a client stops.
        """
        k, going = len(losses), ~self.done[: len(losses)]
        self.made[:k] += going
        self.sum[:k] += losses
        self.count[:k] += going
        over = going & self.ends[:k, step]
        if not over.any():
            return not going.any()
        mean = self.sum[:k] / self.count[:k].clamp(min=1)
        rolled = torch.cat([self.latest[:k, 1:], mean[:, None]], 1)
        self.latest[:k] = torch.where(over[:, None], rolled, self.latest[:k])
        self.sum[:k] *= ~over
        self.count[:k] *= ~over
        stop = over & asked(self.latest[:k].to(losses.dtype))
        if stop.any():
            at = stop.nonzero()[:, 0]
            self.held.append((at, {n: t[at] for n, t in mine.items()}))
            self.done[:k] |= stop
        return bool(self.done[:k].all())
