"""A federated round: broadcast, local training, upload, aggregate.

A checkpoint is the state alone.  Clients of several seeds' runs may train as one stack: see `seed_stack`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedtune.core.errors import Diverged
from fedtune.core.trees import Tree
from fedtune.data.federation import rows_by_class
from fedtune.engine import client_errors
from fedtune.engine.batches import Pool
from fedtune.engine.blame import among
from fedtune.engine.local_training import PhaseResult, train
from fedtune.engine.round import RunningRound, participants, require_finite
from fedtune.engine.seed_stack import SeedStack, Work, by_plan
from fedtune.engine.state import Group, RunSetup, State, start
from fedtune.engine.uploads import ClientInputs, read, sends_from_rows, uploads
from fedtune.experiment import plans
from fedtune.experiment.algorithm import DOWN, Phase

__all__ = ["Group", "RunSetup", "State", "participants", "require_finite", "run_rounds", "start"]

Address = tuple[str | int, ...]
RoundResult = tuple[State, dict[str, Any]] | Diverged  # the new state and a row of metrics


def run_rounds(seeds: SeedStack, states: Mapping[int, State]) -> dict[int, RoundResult]:
    """The next round of several runs: of each the new state and metrics (without evaluation), or how it diverged.

    states: by the runs' positions among the seeds, all after the same round.  They are consumed: if only some clients
    take part, a state's tensors are overwritten at the end of the round.
    """
    began = time.perf_counter()
    rounds = [RunningRound(i, seeds.setups[i], state, state.round + 1) for i, state in states.items()]
    plans_by_run = {r.run: plans.plan(r.s.algorithm, r.task) for r in rounds}
    for plan, runs in by_plan(plans_by_run):
        for action in plan:
            active = [r for r in rounds if r.run in runs and not r.lost]
            if isinstance(action, Phase):
                _train(seeds, active, action)
            elif action == DOWN:
                for r in active:
                    r.send_down()
            else:
                _send_up(seeds, active)
    results = {r.run: r.end(states[r.run]) for r in rounds}
    seconds = (time.perf_counter() - began) / len(rounds)  # each run's share
    return {i: r if isinstance(r, Diverged) else (r[0], r[1] | {"seconds": seconds}) for i, r in results.items()}


def _train(seeds: SeedStack, rounds: Sequence[RunningRound], phase: Phase) -> None:
    """Local training of all clients that take part."""
    for i in _groups(rounds):
        active = [r for r in rounds if i in r.active_groups and not r.lost]

        def code(s: RunSetup, g: Group, down: Tree) -> PhaseResult:
            return train_group(s, g, down, phase, ("train", rounds[0].t, rounds[0].phase), rounds[0].t)

        works = [Work(r.run, i, r.groups[i], r.down[i]) for r in active]
        for r, result in zip(active, seeds.run(works, code), strict=True):
            r.take_training(i, result)
    for r in rounds:
        r.end_phase()


def train_group(s: RunSetup, g: Group, down: Tree, phase: Phase, address: Address, t: int) -> PhaseResult:
    """One phase of local training for a group's clients in round t; draws come from their streams at this address."""
    cooled, f = s.scenario.lr_decay ** (t - 1), s.federation
    plans.require_parts(s.algorithm, phase, g.net)
    with client_errors.running(s, g, t):
        if phase.read:
            g = g._replace(tensors=g.tensors | read(s, g, down, phase.read, s.streams(g.ids, *address)))
        pool = Pool(f.x, f.y, f.train.rows[g.ids], f.train.counts[g.ids], s.dtype)
        args = (phase, pool, s.scenario, g.executor, s.streams(g.ids, *address), cooled, g.kept)
        with among(g.ids):
            return train(g.net, g.tensors, down, *args, rows_by_class(f, g.ids))


def _send_up(seeds: SeedStack, rounds: Sequence[RunningRound]) -> None:
    """The clients send and update what they keep, and the servers aggregate."""
    for i in _groups(rounds):
        active = [r for r in rounds if i in r.active_groups and not r.lost]
        if not sends_from_rows(rounds[0].s.algorithm):
            continue  # avoids a pass over the data

        def code(s: RunSetup, g: Group, inputs: ClientInputs) -> Tree:
            with client_errors.running(s, g, rounds[0].t):
                return uploads(s, g, inputs, rounds[0].t)

        works = [Work(r.run, i, r.groups[i], ClientInputs(r.down[i], r.tallies[i], r.clients[i])) for r in active]
        for r, result in zip(active, seeds.run(works, code), strict=True):
            r.take_upload(i, result)
    for r in rounds:
        r.take_in()


def _groups(rounds: Sequence[RunningRound]) -> range:
    return range(len(rounds[0].groups) if rounds else 0)
