"""Local training: one phase for many clients, stacked or one by one, with the same random draws and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws, certain
from fedtune.core.trees import Executor, Tree, join, take, take_cheaply, tree_map
from fedtune.core.trees import leaves as leaves_of
from fedtune.engine.batches import Pool, draw_pool, plan
from fedtune.engine.between_steps import BetweenSteps, Job
from fedtune.engine.client_errors import located
from fedtune.engine.optimizers import Optimizers, path, rate, trained_names
from fedtune.engine.stacked_code import StackedStep, gradients
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Batch, Client, Model, Phase, part_of, parts
from fedtune.experiment.scenario import Scenario
from fedtune.nn.layers import has_convolutions, stacked_layout, stacked_weights


class PhaseResult(NamedTuple):
    """The result of a phase, with a client axis."""

    tensors: dict[str, Tensor]
    losses: Tensor  # [m] float64
    tally: dict[str, Tree]  # the tallies summed over the steps; {} if the loss returns none
    client: Client  # what client code knew about its client
    steps: Tensor  # [m] the number of steps made


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
    counts: Tensor | None = None,
) -> PhaseResult:
    """Train m clients for one phase.  tensors and down have a client axis [m, …]; the arguments are not changed.

    cooled is lr_decay to the power of the previous rounds; a phase with its own lr does not decay.  kept is the
    clients' state between rounds, counts [m, C] their rows of each class.  Returns the new tensors, each client's mean
    loss over its steps (0 without a step), and the tallies of its loss.
    """
    trained = tuple(part for part in phase.train or parts(net) if part not in work.frozen)
    for name, part in net.named_children():
        part.train(name in trained)  # a frozen part keeps its running statistics
    passes = work.local_epochs if phase.epochs is None else phase.epochs
    pools = [pool]
    if phase.pool:
        pools = [draw_pool(net, phase, down, pool, streams, executor=executor, number=i) for i in range(passes)]
    rows = join([{"x": p.x, "y": p.y} for p in pools])
    todo, device = plan(pools, phase, work, passes, streams), pool.counts.device
    lr = torch.full((len(todo.steps),), rate(phase, work, cooled), dtype=pool.real, device=device)

    def client_with(steps: Tensor) -> Client:
        paths = {p: path(p, phase, work, cooled, steps.to(lr.dtype)) for p in trained}
        of_parts = {p: paths.get(p, torch.zeros_like(lr)) for p in parts(net)}
        return Client(kept or {}, lr, steps, of_parts, steps.new_zeros(len(steps), 0) if counts is None else counts)

    client = client_with(torch.tensor(todo.steps, device=device))
    codes = phase.loss, phase.after and phase.after.loss, phase.begin, phase.project
    draws = Draws(codes[0], net), Draws(codes[1], net), Draws(codes[2], net), Draws(codes[3], net)
    job = Job(net, phase, work, cooled, **rows, plan=todo, trained=trained, client=client, streams=streams, draws=draws)
    run = _stack_in_memory if executor == "stack" else _loop
    done = located(
        lambda: certain(lambda: run(job, tensors, down), *draws),
        lambda k: _loop(job.of(only := slice(k, k + 1)), take(tensors, only), take(down, only)),
        len(todo.steps),
    )
    keep = {n: t for n, t in done.tensors.items() if phase.begin or part_of(n) in trained}
    losses, client = done.losses / done.steps.clamp(min=1), client_with(done.steps) if phase.until else client
    return done._replace(tensors=tensors | keep, losses=losses, client=client)


def _frozen(job: Job, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that are neither trained nor changed, so they need not be copied."""
    return {n: t for n, t in tensors.items() if part_of(n) in job.work.frozen}


def _parted(out: Tensor | tuple[Tensor, dict[str, Tree]]) -> tuple[Tensor, dict[str, Tree]]:
    return out if isinstance(out, tuple) else (out, {})


def _stack(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> PhaseResult:
    """All clients as one program, ordered by their number of steps: only those still at work are computed."""
    net, phase, x, y, todo = job.net, job.phase, job.x, job.y, job.plan
    order = sorted(range(len(todo.steps)), key=lambda k: -todo.steps[k])
    order_index = torch.tensor(order, device=x.device)
    steps = [todo.steps[k] for k in order]
    down, eps, clients = (take(tree, order_index) for tree in (down, todo.eps, job.client))  # copies
    mine = take(tensors, order_index) | take_cheaply(_frozen(job, tensors), order_index)
    rows = todo.rows[order_index].transpose(0, 1)  # [S, m, B]
    total = torch.zeros(len(order), device=x.device, dtype=torch.float64)
    tally: dict[str, Tree] = {}
    first, again_draws, *setter_draws = job.begin(order)

    def of_all(number: int, code: Callable[..., Tree], *trees: Tree) -> Tree:
        return setter_draws[number].stacked(code, len(leaves_of(trees)[0]), *trees)

    between = BetweenSteps(job, todo.ends[order_index], of_all).begin(mine, down, clients.kept)
    moving, active, convolves = trained_names(net, job.trained), 0, has_convolutions(net)
    optimizers: Optimizers | None = None
    run = StackedStep(net, phase.loss, first)
    run_again = StackedStep(net, phase.after.loss, again_draws) if phase.after else None
    for s in range(steps[0]):
        count = sum(n > s for n in steps)
        if count != active:
            active, active_slice = count, slice(count)
            mine |= stacked_weights(net, mine, count, job.work.batch)
            live, received, client = (take(t, active_slice) for t in (mine, down, clients))  # views
            leaves = [live[n].detach().requires_grad_() for n in moving]
            live |= dict(zip(moving, leaves, strict=True))
            if optimizers:
                optimizers.cut(leaves)
            for code in filter(None, (run, run_again)):
                code.turn_to(live, leaves, received)
        optimizers = optimizers or Optimizers(
            phase=phase, work=job.work, cooled=job.cooled, names=moving, leaves=leaves, lead=1
        )
        index = rows[s, :active]
        images = x[index]  # [k, B, …]
        noise = {n: e[:active, s] for n, e in eps.items()}
        batch = Batch(stacked_layout(images) if convolves else images, y[index], noise, client)
        losses, step_tally, grads = run(batch)
        optimizers.step(grads)
        if run_again and not (s + 1) % phase.repeat:
            optimizers.step_again(run_again(batch)[2])
        losses, step_tally = between.counted(losses, step_tally)
        total[:active] += losses
        tally = tally or tree_map(lambda t: t.new_zeros(len(order), *t.shape[1:]), step_tally)
        tree_map(lambda sums, part: sums[: len(part)].add_(part), tally, step_tally)
        if between.over(s, losses, live, received, client.kept, mine):
            break
    back, steps_made = order_index.argsort(), between.end(mine, torch.tensor(steps, device=x.device))
    return PhaseResult(take(mine, back), total[back], take(tally, back), job.client, steps_made[back])


def _stack_in_memory(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> PhaseResult:
    """All clients as one program; if they do not fit into a GPU's memory, one half after the other."""
    try:
        return _stack(job, tensors, down)
    except torch.OutOfMemoryError:
        if len(job.plan.steps) == 1:
            raise
    torch.cuda.empty_cache()
    middle = len(job.plan.steps) // 2
    halves = slice(0, middle), slice(middle, None)
    return join([_stack_in_memory(job.of(half), take(tensors, half), take(down, half)) for half in halves])


def _loop(job: Job, tensors: dict[str, Tensor], down: dict[str, Tree]) -> PhaseResult:
    """One client after the other."""
    net, phase, x, y, todo = job.net, job.phase, job.x, job.y, job.plan
    tensors = tree_map(torch.clone, tensors) | _frozen(job, tensors)
    moving = trained_names(net, job.trained)
    total = torch.zeros(len(todo.steps), device=x.device, dtype=torch.float64)
    tally: dict[str, Tree] = {}
    steps_made = torch.tensor(todo.steps, device=x.device)
    draws, draws_again, *setter_draws = job.begin(range(len(todo.steps)))
    for k, steps in enumerate(todo.steps):
        mine, received, client = take(tensors, k), take(down, k), take(job.client, k)  # views: written through

        def of_one(number: int, code: Callable[..., Tree], *trees: Tree, k: int = k) -> Tree:
            return setter_draws[number].alone(code, k, *trees)

        between = BetweenSteps(job, todo.ends[k : k + 1], of_one).begin(mine, received, client.kept)
        leaves = [mine[n].detach().requires_grad_() for n in moving]
        live = mine | dict(zip(moving, leaves, strict=True))
        model = Model(net, live, client.kept)
        optimizers = Optimizers(phase=phase, work=job.work, cooled=job.cooled, names=moving, leaves=leaves, lead=0)
        for s in range(steps):
            index = todo.rows[k, s]
            batch = Batch(x[index], y[index], {n: e[k, s] for n, e in todo.eps.items()}, client)
            loss, step_tally = _parted(hooks.loss(phase.loss, draws.alone(phase.loss, k, model, batch, received)))
            optimizers.step(gradients(phase.loss, loss, leaves))
            if phase.after and not (s + 1) % phase.repeat:
                code = phase.after.loss
                second_loss, _ = _parted(hooks.loss(code, draws_again.alone(code, k, model, batch, received)))
                optimizers.step_again(gradients(code, second_loss, leaves))
            total[k] += loss.detach()
            if not tally:
                tally = tree_map(lambda t: t.detach().new_zeros(len(todo.steps), *t.shape), step_tally)
            tree_map(lambda sums, part: sums[k].add_(part.detach()), tally, step_tally)  # noqa: B023 (called at once)
            if between.over(s, loss.detach()[None], live, received, client.kept, {}):
                break
        steps_made[k : k + 1] = between.end({}, steps_made[k : k + 1])
    return PhaseResult(tensors, total, tally, job.client, steps_made)
