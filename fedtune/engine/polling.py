"""Choosing clients by their losses: `oort`, or power-of-choice (Cho et al., AISTATS 2022, "Towards understanding biased
client selection in federated learning").

Power-of-choice: the first d clients of the round's permutation download what they would be scored with, answer their
mean loss on their training rows (4 bytes), and the m with the largest take part; of equal ones those that come first.
"""

from __future__ import annotations

from fedtune.core import randomness
from fedtune.core.trees import Size, bytes_of_each, size
from fedtune.engine import evaluation, oort
from fedtune.engine.clock import READING
from fedtune.engine.cohort import ANSWER, Poll, enough, participants, permutation
from fedtune.engine.state import RunSetup, State
from fedtune.experiment import hooks, plans
from fedtune.experiment.algorithm import UP


def asked(s: RunSetup, state: State) -> Poll:
    """The clients that the next round asks to take part; more than are wanted if only the first to answer count."""
    t, scenario, waits = state.round + 1, s.scenario, UP in plans.plan(s.algorithm, s.task_in(state.round + 1))
    share = scenario.over_ask if waits else 1.0
    wanted = min(enough(s, share), s.task.clients)
    if waits and scenario.selection == "oort":
        return _by_utility(s, state, wanted)
    offered = permutation(s, t)[: max(wanted, scenario.offered or enough(s, 2))]
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


def _by_utility(s: RunSetup, state: State, wanted: int) -> Poll:
    """As Oort chooses; what a task takes is estimated from its rows and from the model, sent as it is."""
    assert s.devices
    scenario, d, rows = s.scenario, s.devices, s.federation.train.counts
    model = 8e-6 * sum(t.numel() * t.element_size() for t in state.server.get("shared", {}).values())
    steps = scenario.local_steps * scenario.batch or scenario.local_epochs * rows.cpu().double()
    expected = d.lag + model / d.down_mbps + model / d.up_mbps + steps * scenario.row_seconds * d.slow
    stream = randomness.stream(s.task.seed, "arms", state.round + 1)
    arms = oort.arms(state.extra, s.task.clients)
    ids = oort.chosen(arms, state.round + 1, wanted, expected, stream).to(rows.device)
    return Poll(ids, utility=rows[ids] * evaluation.training_losses(s, state, ids, "squares").sqrt())
