"""A federated round: broadcast, local training, upload, aggregate.

State is everything there is: saving it is the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core import metrics, randomness
from fedtune.core.errors import Diverged, UserError
from fedtune.core.trees import NOTHING, Executor, Size, Tree, for_each_client, join, leaves, size, take, tree_map
from fedtune.data.federation import Federation, Split
from fedtune.federated.algorithm import DOWN, Algorithm, Data, Model, Phase, Task, draw, part_of, parts
from fedtune.federated.local_training import Pool, train
from fedtune.federated.scenario import Scenario
from fedtune.nn.architectures import Net
from fedtune.nn.layers import has_convolutions, stacked_layout

ROWS_AT_ONCE = 8192  # of evaluation and upload, padded: bounds the memory of activations

Part = Tensor | slice  # positions of some of a group's clients


class Group(NamedTuple):
    """The clients that run one architecture."""

    net: nn.Module  # the form; its own values are never used
    ids: Tensor  # [K_g] client numbers, ascending
    tensors: dict[str, Tensor]  # what belongs to the clients (parts that are not shared), stacked [K_g, …]
    executor: Executor


class State(NamedTuple):
    """Everything that changes from round to round."""

    server: dict[str, Tree]  # "shared": the averaged parts; and the algorithm's entries
    groups: tuple[Group, ...]
    round: int  # rounds trained so far
    bytes: int  # sent and received so far


class Setting(NamedTuple):
    """Everything of a run that does not change from round to round."""

    algorithm: Algorithm
    federation: Federation  # tensors on the device
    scenario: Scenario
    task: Task
    everywhere: Split | None = None  # test rows of all classes, the same for every client

    def task_in(self, t: int) -> Task:
        """The task as an algorithm is given it in round t = 1, 2, …"""
        return self.task._replace(t=t)

    def scored_clients(self) -> Tensor:
        """The clients that are scored, ascending: all, or as many as the scenario says, the same in every round."""
        if not self.scenario.eval_clients:
            return torch.arange(self.task.clients, device=self.federation.x.device)
        order = torch.randperm(self.task.clients, generator=randomness.stream(self.task.seed, "scored"))
        return order[: self.scenario.eval_clients].sort().values.to(self.federation.x.device)


def start(s: Setting, nets: list[tuple[Net, list[int], Executor]]) -> State:
    """Round 0: clients of one form start from the same values, drawn from the seed; what is shared, from the first's.

    nets: forms, each with its clients and the way to run them.  UserError if shared parts differ in shape.
    """
    device, dtype = s.federation.x.device, s.federation.x.dtype
    server, groups = s.algorithm.init(s.task), []
    for form, ids, executor in nets:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(randomness.number(s.task.seed, "parts"))
            net = s.algorithm.build(form, s.task)
        missing = set(s.algorithm.shared) - set(parts(net))
        assert not missing, f"{type(s.algorithm).__name__} shares parts that the net lacks: {missing}"
        tensors = {n: _cast(t.detach(), device, dtype) for n, t in net.state_dict().items()}
        kept = {n for n, _ in net.named_buffers()} if s.scenario.batch_norm == "personal" else set()
        shared = {n: t for n, t in tensors.items() if part_of(n) in s.algorithm.shared and n not in kept}
        own = {n: t.expand(len(ids), *t.shape).clone() for n, t in tensors.items() if n not in shared}
        groups.append(Group(net, torch.tensor(sorted(ids), device=device), own, executor))
        if shared:
            _require_equal(s.algorithm, server.setdefault("shared", shared), shared, ids)
    return State(tree_map(lambda t: _cast(t, device, dtype), server), tuple(groups), 0, 0)


def _require_equal(alg: Algorithm, first: dict[str, Tensor], other: dict[str, Tensor], ids: list[int]) -> None:
    """UserError unless a group's shared parts have the first group's shapes: what is averaged must be alike."""
    a, b = ({n: tuple(t.shape) for n, t in tree.items()} for tree in (first, other))
    if a != b:
        name = next(n for n in (*a, *b) if a.get(n) != b.get(n))
        raise UserError(
            f"{type(alg).__name__} averages {', '.join(alg.shared)}, so every client needs the same there, but clients "
            f"{ids[:5]} have {name} {b.get(name, 'not at all')} and others {a.get(name, 'not at all')}; give all of "
            "them one model, or use an algorithm that shares less"
        )


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
        self.groups = [
            g._replace(ids=g.ids[a], tensors=take(g.tensors, a)) for g, a in zip(state.groups, self.at, strict=True)
        ]
        self.here = [i for i, g in enumerate(self.groups) if len(g.ids)]
        self.down: list[dict[str, Tree]] = [{} for _ in self.groups]
        self.tallies: list[dict[str, Tree]] = [{} for _ in self.groups]
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
        """The clients send, and the server takes it in, in the order of their numbers."""
        ups = [_upload(self.s, self.server, self.groups[i], self.down[i], self.tallies[i], self.t) for i in self.here]
        self.up_size = reduce(Size.plus, map(size, ups), self.up_size)
        ids = torch.cat([self.groups[i].ids for i in self.here])
        self.server = self.s.algorithm.aggregate(self.server, take(join(ups) | {"ids": ids}, ids.argsort()), self.task)

    def train(self, phase: Phase) -> None:
        """Local training of all clients that take part."""
        s, t, losses = self.s, self.t, []
        for i in self.here:
            g = self.groups[i]
            streams = [randomness.stream(s.task.seed, "train", t, self.phase, k) for k in g.ids.tolist()]
            pool, cooled = _pool(s.federation, g.ids), s.scenario.lr_decay ** (t - 1)
            done = train(g.net, g.tensors, self.down[i], phase, pool, s.scenario, g.executor, streams, cooled)
            self.groups[i] = g._replace(tensors=done.tensors)
            losses.append(done.losses)
            self.tallies[i] = done.tally or self.tallies[i]
            _require_finite(t, g.ids, done.losses, {})
        self.train_loss = torch.cat(losses).mean().item() if self.train_loss is None else self.train_loss
        self.phase += 1

    def require_finite(self) -> None:
        """Diverged unless all parameters and all of the server's entries are finite."""
        for i in self.here:
            _require_finite(self.t, self.groups[i].ids, torch.zeros(1), self.groups[i].tensors)
        lost = [n for n, tree in self.server.items() if not all(v.isfinite().all() for v in leaves(tree))]
        if lost:
            raise Diverged(f"diverged in round {self.t}: the server's {', '.join(lost)} left the finite numbers")

    def merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """The groups with the tensors of those that took part."""
        return tuple(
            old._replace(tensors=_back(old, a, {n: g.tensors[n] for n in old.tensors}))
            for old, a, g in zip(groups, self.at, self.groups, strict=True)
        )


@torch.no_grad()
def _upload(s: Setting, server: dict[str, Tree], g: Group, down: dict[str, Tree], tally: dict[str, Tree], t: int
            ) -> dict[str, Tree]:
    """What the clients of a group send: their shared parts with their rows, and what the algorithm adds."""
    g.net.eval()
    up: dict[str, Tree] = {}
    if s.algorithm.shared:
        up["shared"] = {n: g.tensors[n] for n in server["shared"]}
        up["rows"] = s.federation.train.counts[g.ids]
    if type(s.algorithm).upload is Algorithm.upload:
        return up  # nothing more: spare the pass over the data
    streams = [randomness.stream(s.task.seed, "upload", t, k) for k in g.ids.tolist()]
    noise = [draw(s.algorithm.upload_noise(s.task), stream, (), s.federation.x.dtype) for stream in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(s.federation.x.device), noise[0], *noise[1:])

    def one(tensors: dict[str, Tensor], data: Data, received: dict[str, Tree]) -> dict[str, Tree]:
        return s.algorithm.upload(Model(g.net, tensors), data, received)

    def run(part: Part) -> dict[str, Tree]:
        data = rows_of(s, s.federation.train, g, part)._replace(eps=take(eps, part), tally=take(tally, part))
        return for_each_client(one, g.executor, take(g.tensors, part), data, take(down, part))

    return up | in_chunks(g, s.federation.train, run)


def in_chunks(g: Group, table: Split, run: Callable[[Part], Tree]) -> Tree:
    """What `run` gives for a group's clients, in their order: one by one in a loop, else a chunk of them at a time."""
    if g.executor == "loop":
        return join([run(slice(i, i + 1)) for i in range(len(g.ids))])
    parts = chunks_of(g, table)
    if len(parts) == 1:
        return run(slice(None))
    return take(join([run(part) for part in parts]), torch.cat(parts).argsort())


def chunks_of(g: Group, table: Split) -> list[Tensor]:
    """Positions of the clients that run together, chunk by chunk: as many as ROWS_AT_ONCE holds, padded.

    Clients with about as many rows go together, the largest first: little is padding, and hardly any is left alone.
    (Stacked clients of the two-conv CNN predict twice as many rows a second as one alone: benchmarks/clients.py.)
    """
    counts = table.counts[g.ids].tolist()
    parts: list[list[int]] = []
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        room = ROWS_AT_ONCE // counts[parts[-1][0]] if parts else 0
        parts[-1].append(i) if parts and len(parts[-1]) < room else parts.append([i])
    return [torch.tensor(sorted(part), device=g.ids.device) for part in parts]


def rows_of(s: Setting, table: Split, g: Group, part: Part) -> Data:
    """The rows of some clients of a group, padded to the longest of them."""
    ids = g.ids[part]
    counts = table.counts[ids]
    rows = table.rows[ids, : int(counts.max())]
    x = s.federation.x[rows]
    if g.executor == "stack" and has_convolutions(g.net):
        x = stacked_layout(x)
    mask = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
    return Data(x, s.federation.y[rows], mask, {})


def _pool(f: Federation, ids: Tensor) -> Pool:
    return Pool(f.x, f.y, f.train.rows[ids], f.train.counts[ids])


def _back(old: Group, at: Tensor, new: dict[str, Tensor]) -> dict[str, Tensor]:
    """The group's tensors with those of some clients replaced, in place: who sat a round out costs nothing."""
    if len(at) == len(old.ids):
        return new
    return {n: t.index_copy_(0, at, new[n]) for n, t in old.tensors.items()}


def _require_finite(t: int, ids: Tensor, losses: Tensor, tensors: dict[str, Tensor]) -> None:
    """Diverged, with round and clients, unless every loss [K_g] and every parameter is finite."""
    fine = {"loss": losses.isfinite().to(ids.device).expand(len(ids))}
    reals = [v.flatten(1).isfinite().all(1) for v in leaves(tensors) if v.is_floating_point()]
    fine["parameters"] = torch.stack(reals).all(0) if reals else fine["loss"]
    for what, good in fine.items():
        if not good.all():
            bad = ids[~good].tolist()
            some = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
            who = f"{len(bad)} client(s) ({some})"
            raise Diverged(f"diverged in round {t}: the {what} of {who} left the finite numbers")


def _cast(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return t.to(device, dtype if t.is_floating_point() else t.dtype)
