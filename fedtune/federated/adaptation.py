"""What clients train before they are scored, where an algorithm's `adapt` says so: personal fine-tuning."""

from __future__ import annotations

import torch

from fedtune.core import randomness
from fedtune.federated import client_code
from fedtune.federated.algorithm import Phase
from fedtune.federated.engine import pool_of, require_finite
from fedtune.federated.local_training import train
from fedtune.federated.state import Group, Setting, State


def adapted(s: Setting, state: State, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """The groups as they are scored; they themselves stay as they are.  Raises Diverged.

    Where something is trained, a group's tensors come back with what it received in them.
    """
    phases = s.algorithm.adapt(s.task_in(state.round + 1))
    return tuple(_adapted(s, state, g, phases) for g in groups) if phases else groups


@torch.enable_grad()
def _adapted(s: Setting, state: State, g: Group, phases: tuple[Phase, ...]) -> Group:
    task = s.task_in(state.round + 1)  # as for what is deployed
    down = s.algorithm.deployed(state.server, g.ids, task)
    g = g._replace(tensors=g.tensors | s.algorithm.receive(down))
    cooled = s.scenario.lr_decay**state.round
    for i, phase in enumerate(phases):
        streams = [randomness.stream(s.task.seed, "adapt", task.t, i, k) for k in g.ids.tolist()]
        pool = pool_of(s, g.ids)
        with client_code.running(g.executor):
            done = train(g.net, g.tensors, down, phase, pool, s.scenario, g.executor, streams, cooled, g.kept)
        g = g._replace(tensors=done.tensors)
        require_finite(state.round, g.ids, done.losses, g.tensors, {})
    return g
