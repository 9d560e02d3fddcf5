"""Local training: one phase of many clients, stacked or one by one, with the same draws and the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws, certain, streams_of
from fedtune.core.trees import Executor, Tree, for_each_client, join, take, take_cheaply, tree_map
from fedtune.federated.algorithm import Batch, Client, Data, Model, Phase, draw, part_of, parts
from fedtune.federated.blame import finding
from fedtune.federated.optimizers import Optimizers, path, rate, trained_names
from fedtune.federated.scenario import Scenario
from fedtune.federated.stacked_step import gradients, steps_of
from fedtune.nn.layers import has_convolutions, stacked_layout, stacked_weights


class Pool(NamedTuple):
    """Rows to train on.  Row j of client k is x[rows[k, j]], for j < counts[k]."""

    x: Tensor  # [R, …]
    y: Tensor  # [R]
    rows: Tensor  # [m, N]
    counts: Tensor  # [m]
    dtype: torch.dtype | None = None  # of noise; None: x's, which then are no whole numbers

    @property
    def real(self) -> torch.dtype:
        """The type of the run's real numbers."""
        return self.dtype or self.x.dtype


class Job(NamedTuple):
    """One phase of local training as an executor gets it."""

    net: nn.Module  # the form, its parts in train or eval mode
    phase: Phase
    work: Scenario
    cooled: float  # what the clients' learning rate has been multiplied by so far
    x: Tensor  # [R, …] the rows that the plan speaks of
    y: Tensor  # [R]
    plan: Plan
    trained: tuple[str, ...]  # the parts that move
    client: Client  # with a client axis
    streams: list[torch.Generator]  # whose addresses are the clients' in this phase
    draws: tuple[Draws, Draws]  # of a step, and of the second one

    def begin(self, order: Sequence[int]) -> tuple[Draws, Draws]:
        """What serves the random numbers of a step and of the second one, to these clients from their beginning."""
        mine = [self.streams[k] for k in order]
        for draws, purpose in zip(self.draws, ("draws", "draws again"), strict=True):
            draws.begin(streams_of(mine, purpose))
        return self.draws


class Plan(NamedTuple):
    """Who does how many steps on which rows with which noise: drawn ahead, each client from its own stream."""

    steps: list[int]  # of each client
    rows: Tensor  # [m, S, B] rows of pool.x, padded past a client's own steps
    eps: dict[str, Tensor]  # [m, S, …]


class Done(NamedTuple):
    """What a phase leaves, with a client axis."""

    tensors: dict[str, Tensor]
    losses: Tensor  # [m] float64
    tally: dict[str, Tree]  # {} unless the loss returns (loss, tally): then the sum of its tallies over the steps
    client: Client  # what client code knew of its client


def train(
    net: nn.Module,
    tensors: dict[str, Tensor],
    down: dict[str, Tree],
    phase: Phase,
    pool: Pool,
    work: Scenario,
    executor: Executor,
    streams: list[torch.Generator],
    cooled: float = 1.0,
    kept: dict[str, Tree] | None = None,
) -> Done:
    """Train m clients for one phase.  tensors and down have a client axis [m, …]; nothing given is changed.

    cooled is lr_decay to the power of the rounds before; a phase with its own lr is not cooled.  kept is what the
    clients keep between rounds.
    Returns the new tensors, each client's mean loss over its steps (0 without a step), and what its loss tallied.
    """
    trained = tuple(part for part in phase.train or parts(net) if part not in work.frozen)
    for name, part in net.named_children():
        part.train(name in trained)  # a frozen part keeps its running statistics
    passes = work.local_epochs if phase.epochs is None else phase.epochs
    pools = [_drawn(net, phase, down, pool, streams, executor, i) for i in range(passes)] if phase.pool else [pool]
    rows = join([{"x": p.x, "y": p.y} for p in pools])
    todo, device = plan(pools, phase, work, passes, streams), pool.counts.device
    steps = torch.tensor(todo.steps, device=device)
    lr = torch.full((len(steps),), rate(phase, work, cooled), dtype=pool.real, device=device)
    paths = {p: path(p, phase, work, cooled, steps.to(lr.dtype)) for p in trained}
    client = Client(kept or {}, lr, steps, {p: paths.get(p, torch.zeros_like(lr)) for p in parts(net)})
    draws = Draws(phase.loss, net), Draws(phase.after and phase.after.loss, net)
    job = Job(net, phase, work, cooled, rows["x"], rows["y"], todo, trained, client, streams, draws)
    run = _stack_in_memory if executor == "stack" else _loop
    with finding(lambda k, at: _alone(job, tensors, down, k, at), lambda: _rows(job)):
        done = certain(lambda: run(job, tensors, down), *draws)
    keep = {n: t for n, t in done.tensors.items() if part_of(n) in trained}
    return Done(tensors | keep, done.losses / steps.clamp(min=1), done.tally, client)


def plan(pools: list[Pool], phase: Phase, work: Scenario, passes: int, streams: list[torch.Generator]) -> Plan:
    """Batches of exactly B real rows: permutation after permutation, the last batch of one wraps into the next.

    A client with fewer rows than B meets some of them twice in a batch; one without rows does no step.  Several
    pools are gone through once each, one after the other; a single one `passes` times.  Where the scenario counts
    steps, it has so many in place of all its passes, and each pass of a phase with epochs of its own over a client's
    own rows has as many.
    """
    batch, device = work.batch, pools[0].rows.device
    starts = [0]
    for pool in pools[:-1]:
        starts.append(starts[-1] + len(pool.x))
    counts = [p.counts.tolist() for p in pools]
    tables = [p.rows.cpu() + start for p, start in zip(pools, starts, strict=True)]
    rows, eps, steps = [], [], []
    for k, stream in enumerate(streams):
        mine = []
        for table, count in zip(tables, counts, strict=True):
            n = count[k]
            if phase.steps is not None:
                need = phase.steps * batch
            elif work.local_steps and (phase.epochs is None or phase.pool is None):
                need = work.local_steps * (1 if phase.epochs is None else phase.epochs) * batch
            else:
                need = (passes if len(pools) == 1 else 1) * -(-n // batch) * batch
            if n and need:
                order = torch.cat([torch.randperm(n, generator=stream) for _ in range(-(-need // n))])[:need]
                mine.append(table[k, order])
        rows.append(torch.cat(mine).view(-1, batch) if mine else torch.zeros(0, batch, dtype=torch.int64))
        steps.append(len(rows[-1]))
        eps.append(draw(phase.noise, stream, (steps[-1],), pools[0].real))
    padded = tree_map(lambda *ts: _padded(ts).to(device), eps[0], *eps[1:])
    return Plan(steps, _padded(rows).to(device), padded)


def _padded(ragged: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(ragged), batch_first=True)


def _drawn(
    net: nn.Module, phase: Phase, down: dict[str, Tree], like: Pool, streams: list[torch.Generator],
    executor: Executor, number: int,
) -> Pool:  # fmt: skip
    """The rows that the phase makes itself, as a Pool; masked ones are left out."""
    assert phase.pool is not None
    noise = [draw(phase.pool_noise, s, (), like.real) for s in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(like.x.device), noise[0], *noise[1:])
    pool, draws = phase.pool, Draws(phase.pool, net)

    def run() -> Data:
        draws.begin(streams_of(streams, f"pool draws {number}"))
        none = [torch.empty(0)] * len(streams)
        with finding(lambda k, _: draws.alone(pool, k, take(down, k), take(eps, k)), lambda: none):
            found: Data = for_each_client(pool, executor, down, eps, draws=draws)
        return found

    with torch.no_grad():
        data = certain(run, draws)
    m, n = data.mask.shape
    real_first = (~data.mask).to(torch.int8).argsort(dim=1, stable=True)
    rows = real_first + n * torch.arange(m, device=like.x.device)[:, None]
    return Pool(data.x.flatten(0, 1), data.y.flatten(), rows, data.mask.sum(1), like.real)


def _frozen(job: Job, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What nobody trains and nothing changes: it need not be copied."""
    return {n: t for n, t in tensors.items() if part_of(n) in job.work.frozen}


def _parted(out: Tensor | tuple[Tensor, dict[str, Tree]]) -> tuple[Tensor, dict[str, Tree]]:
    """A loss, and what it tallies of its batch."""
    return out if isinstance(out, tuple) else (out, {})


def _stack(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> Done:
    """All clients as one program.

    Clients are ordered by their number of steps: those still at work are a prefix, and nothing computes the others.
    """
    net, phase, x, y, todo = job.net, job.phase, job.x, job.y, job.plan
    order = sorted(range(len(todo.steps)), key=lambda k: -todo.steps[k])
    at = torch.tensor(order, device=x.device)
    steps = [todo.steps[k] for k in order]
    down, eps, clients = (take(tree, at) for tree in (down, todo.eps, job.client))  # copies
    mine = take(tensors, at) | take_cheaply(_frozen(job, tensors), at)
    rows = todo.rows[at].transpose(0, 1)  # [S, m, B]
    total = torch.zeros(len(order), device=x.device, dtype=torch.float64)
    tally: dict[str, Tree] = {}

    asks: list[str] = []  # what client code asked of its client's scalars in the first step; tensors cost time
    moving, active, convolves = trained_names(net, job.trained), 0, has_convolutions(net)
    optimizers: Optimizers | None = None
    run, run_again = steps_of(net, phase, job.begin(order), asks)
    for s in range(steps[0]):
        still = sum(n > s for n in steps)
        if still != active:
            active, some = still, slice(still)
            mine |= stacked_weights(net, mine, still, job.work.batch)
            now, received, (kept, *scalars) = take(mine, some), take(down, some), take(clients, some)  # views
            leaves = [now[n].detach().requires_grad_() for n in moving]
            now |= dict(zip(moving, leaves, strict=True))
            if optimizers:
                optimizers.cut(leaves)
            run.turn_to(now, leaves, received)
            if run_again:
                run_again.turn_to(now, leaves, received)
        optimizers = optimizers or Optimizers(phase, job.work, job.cooled, moving, leaves, 1)
        index = rows[s, :active]
        images = x[index]  # [k, B, …]
        noise = {n: e[:active, s] for n, e in eps.items()}
        told = (kept, *scalars) if s == 0 or asks else (kept,) if kept else ()
        step = (stacked_layout(images) if convolves else images, y[index], noise, *told)
        losses, seen, grads = run(step)
        optimizers.step(grads)
        if run_again:
            optimizers.step_again(run_again(step)[2])
        total[:active] += losses
        if s == 0:
            tally = tree_map(lambda t: t.new_zeros(len(order), *t.shape[1:]), seen)
        tree_map(lambda whole, part: whole[: len(part)].add_(part), tally, seen)
    back = at.argsort()
    return Done(take(mine, back), total[back], take(tally, back), job.client)


def _stack_in_memory(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> Done:
    """All clients as one program; where a GPU's memory does not hold them, half of them after the other half."""
    try:
        return _stack(job, tensors, down)
    except torch.OutOfMemoryError:
        if len(job.plan.steps) == 1:
            raise
    torch.cuda.empty_cache()
    steps, rows, eps = job.plan
    half, found = len(steps) // 2, []
    for some in (slice(0, half), slice(half, None)):
        todo, streams = Plan(steps[some], rows[some], take(eps, some)), job.streams[some]
        part = job._replace(plan=todo, client=take(job.client, some), streams=streams)
        found.append(_stack_in_memory(part, take(tensors, some), take(down, some)))
    return join(found)


def _loop(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> Done:
    """One client after the other."""
    net, phase, x, y, todo = job.net, job.phase, job.x, job.y, job.plan
    tensors = tree_map(torch.clone, tensors) | _frozen(job, tensors)
    moving = trained_names(net, job.trained)
    total = torch.zeros(len(todo.steps), device=x.device, dtype=torch.float64)
    tally: dict[str, Tree] = {}
    draws, draws_again = job.begin(range(len(todo.steps)))
    for k, steps in enumerate(todo.steps):
        mine, received, client = take(tensors, k), take(down, k), take(job.client, k)  # views: written through
        leaves = [mine[n].detach().requires_grad_() for n in moving]
        model = Model(net, mine | dict(zip(moving, leaves, strict=True)))
        optimizers = Optimizers(phase, job.work, job.cooled, moving, leaves, 0)
        for s in range(steps):
            index = todo.rows[k, s]
            batch = Batch(x[index], y[index], {n: e[k, s] for n, e in todo.eps.items()}, client)
            loss, seen = _parted(draws.alone(phase.loss, k, model, batch, received))
            optimizers.step(gradients(loss, leaves))
            if phase.after:
                again = draws_again.alone(phase.after.loss, k, model, batch, received)
                optimizers.step_again(gradients(again, leaves))
            total[k] += loss.detach()
            if not tally:
                tally = tree_map(lambda t: t.detach().new_zeros(len(todo.steps), *t.shape), seen)
            tree_map(lambda whole, part: whole[k].add_(part.detach()), tally, seen)  # noqa: B023 (called at once)
    return Done(tensors, total, tally, job.client)


def _rows(job: Job) -> list[Tensor]:
    """The rows that each client trains on; none where the phase made them."""
    steps, rows, _ = job.plan
    return [rows[k, : 0 if job.phase.pool else n].unique() for k, n in enumerate(steps)]


def _alone(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree], k: int, at: Tensor | None) -> object:
    """A client's training without the others', or its loss as it begins on some of its rows, batch by batch."""
    (steps, rows, eps), one = job.plan, slice(k, k + 1)
    if at is None:
        part = job._replace(plan=Plan(steps[one], rows[one], take(eps, one)), client=take(job.client, one))
        return _loop(part._replace(streams=job.streams[one]), take(tensors, one), take(down, one))
    given, size = _rows(job)[k][at], rows.shape[2]
    model, noise, client = Model(job.net, take(tensors, k)), {n: e[k, 0] for n, e in eps.items()}, take(job.client, k)
    for index in torch.cat([given, given[:1].expand(-len(given) % size)]).split(size):
        job.draws[0].alone(job.phase.loss, k, model, Batch(job.x[index], job.y[index], noise, client), take(down, k))
    return None
