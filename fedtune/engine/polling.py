"""Choosing clients by their losses: power-of-choice (Cho et al., AISTATS 2022, "Towards understanding biased client
selection in federated learning").

The first d clients of the round's permutation download what they would be scored with, answer their mean loss on their
training rows (4 bytes), and the m with the largest loss take part; of equal ones those that come first.
"""

from __future__ import annotations

from fedtune.core.trees import Size, bytes_of_each, size
from fedtune.engine import evaluation
from fedtune.engine.clock import READING
from fedtune.engine.cohort import Poll, enough, participants, permutation
from fedtune.engine.state import RunSetup, State
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import UP

ANSWER = 4  # bytes


def asked(s: RunSetup, state: State) -> Poll:
    """The clients that the next round asks to take part; more than are wanted if only the first to answer count."""
    t, scenario, waits = state.round + 1, s.scenario, UP in plans.plan(s.algorithm, s.task_in(state.round + 1))
    share = scenario.over_ask if waits else 1.0
    wanted, offered = enough(s, share), permutation(s, t)[: max(enough(s, share), scenario.offered or enough(s, 2))]
    if not waits or len(offered) <= wanted:
        return Poll(participants(s, t, share))
    assert s.devices
    ids, d = offered.cpu(), s.devices
    down = hooks.broadcast(s.algorithm, "deployed", state.server, offered, s.task_in(t))
    reading = READING * s.federation.train.counts[offered].cpu().double() * scenario.row_seconds * d.slow[ids]
    sent = 8e-6 * (bytes_of_each(down, len(ids)) / d.down_mbps[ids] + ANSWER / d.up_mbps[ids])
    order = evaluation.training_losses(s, state, offered).argsort(descending=True, stable=True)
    up = Size(len(ids), 0, ANSWER * len(ids))
    return Poll(offered[order[:wanted]].sort().values, up, size(down), (d.lag[ids] + reading + sent).max().item())
