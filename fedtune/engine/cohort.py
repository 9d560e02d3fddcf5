"""Who takes part in a round."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.engine.state import RunSetup


def participants(s: RunSetup, t: int) -> Tensor:
    """The clients of round t, ascending; drawn without replacement from the round's own stream.

    With Poisson sampling each client takes part with probability m/K, whoever else does: there may be none.
    """
    stream, scenario = randomness.stream(s.task.seed, "participants", t), s.scenario
    if scenario.is_poisson:
        drawn = torch.rand(s.task.clients, generator=stream, dtype=torch.float64) < scenario.drawn_share
        ids = drawn.nonzero()[:, 0]
    else:
        ids = torch.randperm(s.task.clients, generator=stream)[: scenario.participants].sort().values
    return ids.to(s.federation.x.device)
