"""A federated round: broadcast, local training, upload, aggregate.

State is everything there is: saving it is the checkpoint.
"""

from __future__ import annotations

import time
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from fedtune.core import metrics, randomness
from fedtune.core.draws import Draws, certain, streams_of
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import NOTHING, Size, Tree, alike, for_each_client, join, leaves, named, size, take, tree_map
from fedtune.federated import client_code
from fedtune.federated.algorithm import DOWN, Algorithm, Client, Data, Model, Phase, draw
from fedtune.federated.chunks import Part, in_chunks, rows_of
from fedtune.federated.local_training import Pool, train
from fedtune.federated.state import Group, Setting, State, no_steps, start

__all__ = ["Group", "Setting", "State", "participants", "run_round", "start"]


def participants(s: Setting, t: int) -> Tensor:
    """The clients of round t, ascending; drawn without replacement from the round's own stream."""
    order = torch.randperm(s.task.clients, generator=randomness.stream(s.task.seed, "participants", t))
    return order[: s.scenario.participants].sort().values.to(s.federation.x.device)


def run_round(s: Setting, state: State) -> tuple[State, dict[str, Any]]:
    """Run the next round.  Returns the new state and the round's metrics (without evaluation).

    The given state is used up: where only some clients take part, their tensors are overwritten at the round's end.
    Raises Diverged as soon as a loss or a parameter is not finite.
    """
    began, t = time.perf_counter(), state.round + 1
    work = _Round(s, state, t)
    for action in s.algorithm.round(work.task):
        if isinstance(action, Phase):
            work.train(action)
        elif action == DOWN:
            work.send_down()
        else:
            work.send_up()
    work.require_finite()
    total = state.bytes + work.up_size.bytes + work.down_size.bytes
    row = {"train_loss": work.train_loss} | metrics.communication(work.up_size, work.down_size, total)
    row |= s.algorithm.report(work.server)
    new = State(work.server, work.merged(state.groups), t, total)
    return new, row | {"seconds": time.perf_counter() - began}


class _Round:
    """A round at work: the server's entries, the clients that take part, and what they last received and tallied."""

    def __init__(self, s: Setting, state: State, t: int) -> None:
        """Of each group, take the clients of round t."""
        self.s, self.t, self.task, self.server = s, t, s.task_in(t), state.server
        chosen = participants(s, t)
        self.at = [torch.isin(g.ids, chosen).nonzero()[:, 0] for g in state.groups]
        self.groups = [g.at(a) for g, a in zip(state.groups, self.at, strict=True)]
        self.here = [i for i, g in enumerate(self.groups) if len(g.ids)]
        self.down: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.tallies: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.kept = [g.kept for g in self.groups]  # at the round's end
        # what client code knows of its client; before the round's first phase no step was made
        self.clients = [no_steps(s, g.ids)._replace(kept=g.kept) for g in self.groups]
        self.up_size, self.down_size = NOTHING, NOTHING
        self.train_loss: float | None = None  # of the first phase
        self.phase = 0  # counts training only, so that algorithms which exchange different things draw the same

    def send_down(self) -> None:
        """The server sends, and the clients take over what they receive."""
        for i in self.here:
            g = self.groups[i]
            self.down[i] = self.s.algorithm.broadcast(self.server, g.ids, self.task)
            self.down_size = self.down_size.plus(size(self.down[i]))
            self.groups[i] = g._replace(tensors=g.tensors | self.s.algorithm.receive(self.down[i]))

    def send_up(self) -> None:
        """The clients send and remember, and the server takes it in, in the order of their numbers."""
        ups = []
        for i in self.here:
            g, known = self.groups[i], (self.down[i], self.tallies[i], self.clients[i])
            with client_code.running(g.executor):
                up, self.kept[i] = _upload(self.s, g, known, self.t)
            if self.s.algorithm.shared:
                up = {"shared": {n: g.tensors[n] for n in self.server["shared"]}, "rows": _rows(self.s, g)} | up
            ups.append(up)
        self.up_size = reduce(Size.plus, map(size, ups), self.up_size)
        ids = torch.cat([self.groups[i].ids for i in self.here])
        self.server = self.s.algorithm.aggregate(self.server, take(join(ups) | {"ids": ids}, ids.argsort()), self.task)

    def train(self, phase: Phase) -> None:
        """Local training of all clients that take part."""
        s, t, losses = self.s, self.t, []
        for i in self.here:
            g = self.groups[i]
            streams = [randomness.stream(s.task.seed, "train", t, self.phase, k) for k in g.ids.tolist()]
            pool, cooled = pool_of(s, g.ids), s.scenario.lr_decay ** (t - 1)
            with client_code.running(g.executor):
                args = (phase, pool, s.scenario, g.executor, streams, cooled, g.kept)
                done = train(g.net, g.tensors, self.down[i], *args)
            self.groups[i] = g._replace(tensors=done.tensors)
            losses.append(done.losses)
            self.tallies[i], self.clients[i] = done.tally or self.tallies[i], done.client
            require_finite(t, g.ids, done.losses, {}, {})
        self.train_loss = torch.cat(losses).mean().item() if self.train_loss is None else self.train_loss
        self.phase += 1

    def require_finite(self) -> None:
        """Diverged unless all parameters, all that clients keep and all of the server's entries are finite."""
        for i in self.here:
            require_finite(self.t, self.groups[i].ids, torch.zeros(1), self.groups[i].tensors, self.kept[i])
        lost = [n for n, tree in self.server.items() if not all(v.isfinite().all() for v in leaves(tree))]
        if lost:
            raise Diverged(f"diverged in round {self.t}: the server's {', '.join(lost)} left the finite numbers")

    def merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """The groups with the tensors of those that took part, and what these keep."""
        return tuple(
            old._replace(tensors=_back(old.tensors, a, g.tensors), kept=_back(old.kept, a, kept))
            for old, a, g, kept in zip(groups, self.at, self.groups, self.kept, strict=True)
        )


@torch.no_grad()
def _upload(s: Setting, g: Group, known: tuple[Tree, Tree, Client], t: int) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """What the algorithm has the clients of a group send, and what they keep from now on.

    known: what they received and tallied, and what they know of themselves.
    """
    g.net.eval()
    (down, tally, clients), alg = known, s.algorithm
    sends = type(alg).upload is not Algorithm.upload
    remembers = type(alg).remember is not Algorithm.remember
    if not (sends or remembers):
        return {}, g.kept  # spare the pass over the data
    streams = [randomness.stream(s.task.seed, "upload", t, k) for k in g.ids.tolist()]
    noise = [draw(alg.upload_noise(s.task), stream, (), s.dtype) for stream in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(s.federation.x.device), noise[0], *noise[1:])

    def one(tensors: dict[str, Tensor], data: Data, received: dict[str, Tree]) -> dict[str, Tree]:
        m = Model(g.net, tensors)
        up = alg.upload(m, data, received) if sends else {}
        return {"up": up, "kept": alg.remember(m, data, received) if remembers else {}}

    draws = Draws(_upload, g.net)

    def run(part: Part) -> dict[str, Tree]:
        draws.begin(lambda: streams_of([streams[i] for i in torch.arange(len(streams))[part]])())
        data = rows_of(s, s.federation.train, g, part)
        data = data._replace(eps=take(eps, part), tally=take(tally, part), client=take(clients, part))
        return for_each_client(one, g.executor, take(g.tensors, part), data, take(down, part), draws=draws)

    found = certain(lambda: in_chunks(g, s.federation.train, run), draws)
    return found["up"], _of_the_form(g.kept, found["kept"], type(alg).__name__) if remembers else g.kept


def _of_the_form(old: Tree, new: Tree, name: str) -> Tree:
    """What clients remember; UserError unless it has the form of what they kept."""

    def form(tree: Tree) -> list[str]:
        return sorted(f"{n} {str(v.dtype)[6:]} {list(v.shape[1:])}" for n, v in named(tree).items())

    a, b = form(old), form(new)
    if a != b:
        raise UserError(
            f"{name}.remember must return what {name}.keep does, of the same names, shapes and types: "
            f"{', '.join(a) or 'nothing'}; but got {', '.join(b) or 'nothing'}"
        )
    return new


def pool_of(s: Setting, ids: Tensor) -> Pool:
    f = s.federation
    return Pool(f.x, f.y, f.train.rows[ids], f.train.counts[ids], s.dtype)


def _rows(s: Setting, g: Group) -> Tensor:
    return s.federation.train.counts[g.ids]


def _back(old: Tree, at: Tensor, new: Tree) -> Tree:
    """A group's tensors with those of some clients replaced, in place: who sat a round out costs nothing.

    Only what is frozen is one for all clients; what all of a group received and keep untrained is copied here.
    """
    if isinstance(old, dict):
        return {n: _back(t, at, new[n]) for n, t in old.items()}
    if isinstance(old, tuple):
        return type(old)(*(_back(*pair) for pair in zip(old, [at] * len(old), new, strict=True)))
    if alike(old):
        return old
    if len(at) < len(old):
        return old.index_copy_(0, at, new)
    return new.clone() if alike(new) else new


def require_finite(t: int, ids: Tensor, losses: Tensor, tensors: Tree, kept: Tree) -> None:
    """Diverged, with round and clients, unless every loss [K_g], every parameter and all that they keep is finite."""
    fine = {"loss": losses.isfinite().to(ids.device).expand(len(ids))}
    for what, tree in (("parameters", tensors), ("memory", kept)):
        reals = [v.reshape(len(v), -1).isfinite().all(1) for v in leaves(tree) if v.is_floating_point()]
        fine[what] = torch.stack(reals).all(0) if reals else fine["loss"]
    for what, good in fine.items():
        if not good.all():
            bad = ids[~good].tolist()
            some = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
            who = f"{len(bad)} client(s) ({some})"
            raise Diverged(f"diverged in round {t}: the {what} of {who} left the finite numbers")
