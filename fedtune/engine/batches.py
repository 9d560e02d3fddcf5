"""Batches, drawn in advance, from a client's own rows or from those that its phase makes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtune.core.draws import Draws, certain, streams_of
from fedtune.core.trees import Executor, Tree, tree_map
from fedtune.engine.client_errors import each_client
from fedtune.experiment import hooks
from fedtune.experiment.algorithm import Data, Phase, draw
from fedtune.experiment.scenario import Scenario


class Pool(NamedTuple):
    """Rows to train on.  Row j of client k is x[rows[k, j]], for j < counts[k]."""

    x: Tensor  # [R, …]
    y: Tensor  # [R]
    rows: Tensor  # [m, N]
    counts: Tensor  # [m]
    dtype: torch.dtype | None = None  # the type of noise; None: that of x, if these are floats

    @property
    def real(self) -> torch.dtype:
        """The run's floating-point type."""
        return self.dtype or self.x.dtype


class BatchPlan(NamedTuple):
    """Each client's steps, rows and noise, drawn in advance from the client's own stream."""

    steps: list[int]  # the number of steps of each client
    rows: Tensor  # [m, S, B] rows of pool.x, padded after a client's last step
    eps: dict[str, Tensor]  # [m, S, …]
    ends: Tensor  # [m, S] bool, the last step of each pass


def plan(pools: list[Pool], phase: Phase, work: Scenario, passes: int, streams: list[torch.Generator]) -> BatchPlan:
    """Batches of exactly B real rows: permutations are concatenated, so the last batch of one continues into the next.

    A client with fewer rows than B has some of them twice in a batch; one without rows makes no step.  Several pools
    are used once each, a single one `passes` times.  The scenario's local_steps replace all passes; in a phase with its
    own epochs over the client's own rows they are the steps of each pass.
    """
    batch, device = work.batch * phase.batches, pools[0].rows.device
    starts = [0]
    for pool in pools[:-1]:
        starts.append(starts[-1] + len(pool.x))
    counts = [p.counts.tolist() for p in pools]
    tables = [p.rows.cpu() + start for p, start in zip(pools, starts, strict=True)]
    rows, eps, steps, ends = [], [], [], []
    for k, stream in enumerate(streams):
        mine, ends_pass = [], []
        for table, count in zip(tables, counts, strict=True):
            n, own_rows = count[k], table[k]
            if phase.rows:
                own_rows = own_rows[:n][phase.rows(torch.arange(n))]
                n = len(own_rows)
            if phase.share < 1:
                own_rows = own_rows[torch.randperm(n, generator=stream)[: max(1, round(phase.share * n))]]
                n = min(n, len(own_rows))
            per_pass, times = -(-n // batch), passes if len(pools) == 1 else 1  # steps per pass, and number of passes
            if phase.steps is not None:
                per_pass, times = 1, phase.steps
            elif work.local_steps and (phase.epochs is None or phase.pool is None):
                per_pass, times = work.local_steps, 1 if phase.epochs is None else phase.epochs
            if n and (need := per_pass * times * batch):
                order = torch.cat([torch.randperm(n, generator=stream) for _ in range(-(-need // n))])[:need]
                mine.append(own_rows[order])
                ends_pass += ([False] * (per_pass * phase.repeat - 1) + [True]) * times
        ends.append(torch.tensor(ends_pass, dtype=torch.bool))
        drawn_rows = torch.cat(mine).view(-1, batch) if mine else torch.zeros(0, batch, dtype=torch.int64)
        rows.append(drawn_rows.repeat_interleave(phase.repeat, 0))
        steps.append(len(rows[-1]))
        eps.append(draw(phase.noise, stream, (steps[-1],), pools[0].real))
    padded = tree_map(lambda *ts: _padded(ts).to(device), eps[0], *eps[1:])
    return BatchPlan(steps, _padded(rows).to(device), padded, _padded(ends).to(device))


def _padded(ragged: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(ragged), batch_first=True)


def draw_pool(
    net: nn.Module,
    phase: Phase,
    down: dict[str, Tree],
    like: Pool,
    streams: list[torch.Generator],
    executor: Executor,
    number: int,
) -> Pool:
    """The rows that the phase makes itself, as a Pool; masked rows are left out."""
    assert phase.pool is not None
    noise = [draw(phase.pool_noise, s, (), like.real) for s in streams]
    eps = tree_map(lambda *ts: torch.stack(ts).to(like.x.device), noise[0], *noise[1:])
    pool, draws = phase.pool, Draws(phase.pool, net)

    def rows_of(received: dict[str, Tree], numbers: dict[str, Tensor]) -> Data:
        made: Data = hooks.made(pool, pool(received, numbers))
        return made

    def run() -> Data:
        draws.begin(streams_of(streams, f"pool draws {number}"))
        return each_client(rows_of, executor, down, eps, draws=draws)

    with torch.no_grad():
        data = certain(run, draws)
    m, n = data.mask.shape
    real_first = (~data.mask).to(torch.int8).argsort(dim=1, stable=True)
    rows = real_first + n * torch.arange(m, device=like.x.device)[:, None]
    return Pool(data.x.flatten(0, 1), data.y.flatten(), rows, data.mask.sum(1), like.real)
