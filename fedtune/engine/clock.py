"""The device seconds of a round: when each client has sent, who is lost or late, and how long the server waits.

    t_k = lag_k + 8e-6 down_bytes_k / down_mbps_k + rows_k · row_seconds · slow_k · jitter + 8e-6 up_bytes_k / up_mbps_k

rows_k counts the rows of all steps that client k makes, those of a second step on a batch too.  Passes without training
cost nothing.  A client's t_k runs until it has sent: what follows in the same round is added for those who are taken.
For those who are lost it ends where they are: once they have received.  Nobody can tell sooner that nobody will answer,
so a round in which all are lost lasts until the last of them has, or until the deadline.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtune.core.trees import Tree, bytes_of_each
from fedtune.engine.state import RunSetup
from fedtune.experiment.algorithm import Phase

CLOCK = "clock"  # the entry of State.extra with the seconds since the start, a scalar
READING = 1 / 3  # the cost of a row that is only scored, in rows that are trained on


class Clock:
    """A round's device seconds.  Tensors of all clients [K] are on the CPU, in float64."""

    def __init__(self, *, s: RunSetup, t: int, asked: Tensor, waits: bool, polling: float) -> None:
        """asked: the clients; waits: whether the server waits for uploads.  polling: seconds before the round began."""
        assert s.devices
        self.s, self.devices, self.polling = s, s.devices, polling
        self.wanted = min(len(asked), s.scenario.participants) if s.scenario.over_ask > 1 else len(asked)
        self.spent, self.pace = s.devices.lag.clone(), s.devices.slow * s.scenario.row_seconds
        if s.scenario.devices == "exponential":
            draws = [
                torch.empty((), dtype=torch.float64).exponential_(generator=g) for g in s.streams(asked, "jitter", t)
            ]
            self.pace[asked.cpu()] *= torch.stack(draws) if draws else 1.0
        self.lost = asked[:0]
        if waits and s.scenario.lost_share:
            chances = [torch.rand((), generator=g, dtype=torch.float64) for g in s.streams(asked, "lost", t)]
            self.lost = asked[torch.tensor([bool(c < s.scenario.lost_share) for c in chances], dtype=torch.bool)]
        self.late = self.surplus = 0

    def receives(self, ids: Tensor, down: Tree) -> None:
        """These clients download their messages."""
        self.spent[ids.cpu()] += 8e-6 * bytes_of_each(down, len(ids)) / self.devices.down_mbps[ids.cpu()]

    def trains(self, ids: Tensor, phase: Phase, steps: Tensor) -> None:
        """These clients make so many steps [m] of a phase, and its second step after every last repeated one."""
        all_steps = steps + steps // phase.repeat if phase.after else steps
        self.spent[ids.cpu()] += all_steps.cpu() * (self.s.scenario.batch * phase.batches) * self.pace[ids.cpu()]

    def sends(self, ids: Tensor, of_each: Tensor) -> None:
        """These clients upload messages of so many bytes [m]."""
        self.spent[ids.cpu()] += 8e-6 * of_each / self.devices.up_mbps[ids.cpu()]

    def taken(self, ids: Tensor) -> Tensor:
        """Those of the clients that have sent, ascending, who were in time and among the first that are wanted."""
        at = self.spent[ids.cpu()]
        in_time = ids[(at <= (self.s.scenario.deadline or math.inf)).to(ids.device)]
        first = in_time[self.spent[in_time.cpu()].argsort(stable=True)[: self.wanted].to(ids.device)]
        self.late, self.surplus = len(ids) - len(in_time), len(in_time) - len(first)
        return first.sort().values

    def columns(self, ids: Tensor, before: float) -> dict[str, float]:
        """The row's columns, after all that the taken clients did.  before: device seconds of the rounds before."""
        awaited = ids if len(ids) or self.s.scenario.deadline else self.lost
        last = self.spent[awaited.cpu()].max().item() if len(awaited) else 0.0
        if len(ids) < self.wanted and (len(self.lost) or self.late):
            last = max(last, self.s.scenario.deadline)
        seconds = self.polling + last + self.s.scenario.server_seconds
        counts = {"lost": len(self.lost), "late": self.late, "surplus": self.surplus}
        return {"sim_seconds": before + seconds, "round_seconds": seconds, **counts}
