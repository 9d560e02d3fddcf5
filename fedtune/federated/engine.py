"""A federated round: broadcast, local training, upload, aggregate; and the evaluation.

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
from fedtune.federated.algorithm import DOWN, Algorithm, Data, Model, Phase, Task, draw, parts
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
    round: int  # rounds played
    bytes: int  # sent and received so far


class Setting(NamedTuple):
    """Everything that does not change."""

    algorithm: Algorithm
    federation: Federation  # tensors on the device
    scenario: Scenario
    task: Task
    everywhere: Split | None = None  # test rows of all classes, the same for every client

    def scored(self) -> Tensor:
        """The clients that are scored, ascending: all, or as many as the scenario says, the same in every round."""
        order = torch.randperm(self.task.clients, generator=randomness.stream(self.task.seed, "scored"))
        return order[: self.scenario.eval_clients or self.task.clients].sort().values.to(self.federation.x.device)


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
        shared = {n: t for n, t in tensors.items() if _part(n) in s.algorithm.shared and n not in kept}
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


def play_round(s: Setting, state: State) -> tuple[State, dict[str, Any]]:
    """Play the next round.  Returns the new state and the round's metrics (without evaluation).

    The given state is used up: where only some clients take part, their tensors are overwritten at the round's end.
    Raises Diverged as soon as a loss or a parameter is not finite.
    """
    began, t = time.perf_counter(), state.round + 1
    chosen = participants(s, t)
    server, up_size, down_size = state.server, NOTHING, NOTHING
    at = [torch.isin(g.ids, chosen).nonzero()[:, 0] for g in state.groups]
    groups = [g._replace(ids=g.ids[a], tensors=take(g.tensors, a)) for g, a in zip(state.groups, at, strict=True)]
    here = [i for i, g in enumerate(groups) if len(g.ids)]
    down: list[dict[str, Tree]] = [{} for _ in groups]
    tallies: list[dict[str, Tree]] = [{} for _ in groups]
    train_loss: float | None = None
    phase = 0  # counts training only, so that algorithms which exchange different things train on the same draws
    for action in s.algorithm.round(t, s.task):
        if action == DOWN:
            for i in here:
                down[i] = s.algorithm.broadcast(server, groups[i].ids, s.task)
                down_size = down_size.plus(size(down[i]))
                groups[i] = groups[i]._replace(tensors=groups[i].tensors | s.algorithm.receive(down[i]))
        elif not isinstance(action, Phase):
            ups = [_upload(s, server, groups[i], down[i], tallies[i], t) for i in here]
            up_size = reduce(Size.plus, map(size, ups), up_size)
            ids = torch.cat([groups[i].ids for i in here])
            order = ids.argsort()
            server = s.algorithm.aggregate(server, take(join(ups) | {"ids": ids}, order), s.task)
        else:
            losses = []
            for i in here:
                g = groups[i]
                streams = [randomness.stream(s.task.seed, "train", t, phase, k) for k in g.ids.tolist()]
                pool, cooled = _pool(s.federation, g.ids), s.scenario.lr_decay ** (t - 1)
                done = train(g.net, g.tensors, down[i], action, pool, s.scenario, g.executor, streams, cooled)
                groups[i] = g._replace(tensors=done.tensors)
                losses.append(done.losses)
                tallies[i] = done.tally or tallies[i]
                _require_finite(t, g.ids, done.losses, {})
            train_loss = torch.cat(losses).mean().item() if train_loss is None else train_loss
            phase += 1
    for i in here:
        _require_finite(t, groups[i].ids, torch.zeros(1), groups[i].tensors)
    lost = [n for n, tree in server.items() if not all(v.isfinite().all() for v in leaves(tree))]
    if lost:
        raise Diverged(f"diverged in round {t}: the server's {', '.join(lost)} left the finite numbers")
    new = tuple(
        old._replace(tensors=_back(old, a, {n: g.tensors[n] for n in old.tensors}))
        for old, a, g in zip(state.groups, at, groups, strict=True)
    )
    total = state.bytes + up_size.bytes + down_size.bytes
    row = {"train_loss": train_loss} | metrics.communication(up_size, down_size, total) | s.algorithm.report(server)
    return State(server, new, t, total), row | {"seconds": time.perf_counter() - began}


@torch.no_grad()
def evaluate(s: Setting, state: State, splits: tuple[str, ...] = ("val", "test")) -> dict[str, float]:
    """Metrics of the clients that are scored on their validation and test rows, by the scenario's rule.

    A client's model is its own parts with the shared ones that it would receive now.
    """
    row: dict[str, float] = {}
    ids, groups = s.scored(), state.groups
    if len(ids) < s.task.clients:
        at = [torch.isin(g.ids, ids).nonzero()[:, 0] for g in groups]
        pairs = [(g, a) for g, a in zip(groups, at, strict=True) if len(a)]
        groups = tuple(g._replace(ids=g.ids[a], tensors=take(g.tensors, a)) for g, a in pairs)
    for split in splits:
        table: Split = getattr(s.federation, split)
        pooled = s.scenario.evaluation == "pooled"
        found = [_scores(s, state, g, table) for g in groups]
        order = torch.cat([g.ids for g in groups]).argsort()
        heads = {h: torch.cat([f[0][h] for f in found])[order] for h in found[0][0]}
        loss, rows = torch.cat([f[1] for f in found])[order], table.counts[ids]
        if pooled:  # one global model: all clients' rows as one test set
            heads, loss, rows = {h: c.sum()[None] for h, c in heads.items()}, loss.sum()[None], rows.sum()[None]
        row |= metrics.accuracy(split, heads, rows, s.task.clients)
        if split == "val":
            row["val_loss"] = (loss / rows).mean().item()
    if "test" in splits and s.everywhere:
        heads_of_groups = [_scores(s, state, g, s.everywhere)[0] for g in groups]
        correct = torch.cat([next(iter(heads.values())) for heads in heads_of_groups])
        row["test_acc_all"] = (correct.double() / s.everywhere.counts[ids]).mean().item()
    return row


def _scores(s: Setting, state: State, g: Group, table: Split) -> tuple[dict[str, Tensor], Tensor]:
    """Correct rows per head, name -> [K_g], and the summed loss of the first head [K_g]."""
    g.net.eval()

    def one(t: dict[str, Tensor], received: dict[str, Tree], data: Data) -> dict[str, Any]:
        out = s.algorithm.predict(Model(g.net, t), data.x, received)
        heads = out if isinstance(out, dict) else {"head": out}
        correct = {h: ((z.argmax(1) == data.y) & data.mask).sum() for h, z in heads.items()}
        loss = metrics.log_loss(next(iter(heads.values())), data.y) * data.mask
        return {"correct": correct, "loss": loss.sum().double()}

    def run(part: Part) -> dict[str, Any]:
        down = s.algorithm.deployed(state.server, g.ids[part], s.task)  # here: a chunk of it would be a copy
        tensors = take(g.tensors, part) | s.algorithm.receive(down)
        return for_each_client(one, g.executor, tensors, down, _data(s, table, g, part))

    whole = _in_chunks(g, table, run)
    return whole["correct"], whole["loss"]


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
        data = _data(s, s.federation.train, g, part)._replace(eps=take(eps, part), tally=take(tally, part))
        return for_each_client(one, g.executor, take(g.tensors, part), data, take(down, part))

    return up | _in_chunks(g, s.federation.train, run)


def _in_chunks(g: Group, table: Split, run: Callable[[Part], Tree]) -> Tree:
    """What `run` gives for a group's clients, in their order: one by one in a loop, else a chunk of them at a time."""
    if g.executor == "loop":
        return join([run(slice(i, i + 1)) for i in range(len(g.ids))])
    parts = _chunks(g, table)
    if len(parts) == 1:
        return run(slice(None))
    return take(join([run(part) for part in parts]), torch.cat(parts).argsort())


def _chunks(g: Group, table: Split) -> list[Tensor]:
    """Positions of the clients that run together: as many as ROWS_AT_ONCE holds, padded.

    Clients with about as many rows go together, the largest first: little is padding, and hardly any is left alone.
    (Stacked clients of the two-conv CNN predict twice as many rows a second as one alone: benchmarks/clients.py.)
    """
    counts = table.counts[g.ids].tolist()
    parts: list[list[int]] = []
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        room = ROWS_AT_ONCE // counts[parts[-1][0]] if parts else 0
        parts[-1].append(i) if parts and len(parts[-1]) < room else parts.append([i])
    return [torch.tensor(sorted(part), device=g.ids.device) for part in parts]


def _data(s: Setting, table: Split, g: Group, part: Part) -> Data:
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


def _part(name: str) -> str:
    return name.split(".")[0]


def _cast(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return t.to(device, dtype if t.is_floating_point() else t.dtype)
