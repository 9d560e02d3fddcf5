"""Who takes part in a round."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedtune.core import randomness
from fedtune.core.trees import NOTHING, Size
from fedtune.engine.state import RunSetup

ANSWER = 4  # the bytes of a loss or of a utility


class Poll(NamedTuple):
    """Who was chosen for a round, and what that cost: `polling`."""

    asked: Tensor  # the clients that the round asks to take part, ascending
    up: Size = NOTHING
    down: Size = NOTHING
    seconds: float = 0.0  # device seconds until the last has answered
    utility: Tensor | None = None  # of those asked, which they send with their upload: `oort`


def participants(s: RunSetup, t: int, share: float = 1.0) -> Tensor:
    """The clients of round t, ascending; drawn without replacement from the round's own stream.

    With Poisson sampling each client takes part with probability m/K, whoever else does: there may be none.
    share: of m, how many are drawn without it.
    """
    if s.scenario.is_poisson:
        stream = randomness.stream(s.task.seed, "participants", t, *s.draws)
        chances = torch.rand(s.task.clients, generator=stream, dtype=torch.float64)
        return (chances < s.scenario.participants / s.task.clients).nonzero()[:, 0].to(s.federation.x.device)
    return permutation(s, t)[: enough(s, share)].sort().values


def permutation(s: RunSetup, t: int) -> Tensor:
    """All clients in the order of round t, whose first take part."""
    stream = randomness.stream(s.task.seed, "participants", t)
    return torch.randperm(s.task.clients, generator=stream).to(s.federation.x.device)


def enough(s: RunSetup, share: float) -> int:
    """How many clients are share · m, rounded up: 1.1 · 10 are 11."""
    return math.ceil(round(share * s.scenario.participants, 9))
