"""What moves the clients' parameters in a phase: its optimiser and that of its second step, with paces and clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedtune.federated.algorithm import Phase, part_of
from fedtune.federated.scenario import Scenario


class Optimizers:
    """What moves one client's leaves, or many clients' stacked ones: a phase's optimiser, and that of its second step.

    `lead` is the number of client axes of a leaf: 0 or 1.
    """

    def __init__(
        self, phase: Phase, work: Scenario, cooled: float, names: list[str], leaves: list[Tensor], lead: int
    ) -> None:
        """names: those of the leaves, as of `trained_names`.  cooled: what the clients' rate was multiplied by."""
        self.phase, self.lead = phase, lead
        own = [[i for i, n in enumerate(names) if part_of(n) == part] for part in self.phase.pace]
        rest = [i for i, n in enumerate(names) if part_of(n) not in self.phase.pace]
        paced = [(times, s) for times, s in zip((*self.phase.pace.values(), 1.0), (*own, rest), strict=True) if s]
        self.bounded = [s for _, s in paced]  # what is clipped together
        body = {i for i, n in enumerate(names) if part_of(n) == "body"} if work.body_pace != 1 else set()
        split = [
            (times * share, [i for i in s if (i in body) == inside])
            for times, s in paced for share, inside in ((work.body_pace, True), (1.0, False))
        ]  # fmt: skip
        self.sets = [(times, s) for times, s in split if s]  # what has one rate
        lr = rate(phase, work, cooled)
        groups = [{"params": [leaves[i] for i in s], "lr": lr * times} for times, s in self.sets]
        decay, after = work.weight_decay, self.phase.after
        self.first: torch.optim.Optimizer | None = None  # where all that the phase trains is frozen
        if groups and work.optimizer == "adam":
            self.first = torch.optim.Adam(groups, weight_decay=decay, foreach=True)
        elif groups:
            self.first = torch.optim.SGD(groups, momentum=work.momentum, weight_decay=decay, foreach=True)
        self.second: torch.optim.Optimizer | None = None
        self.then = [i for i, n in enumerate(names) if after and part_of(n) in after.train]
        if after and self.then:
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[after.optimizer]
            self.second = kind([leaves[i] for i in self.then], lr=after.lr, foreach=True)
        self.leaves = leaves

    def cut(self, leaves: list[Tensor]) -> None:
        """Move on to the clients still at work: leaves, and what is remembered of them, are cut to these."""
        self.leaves = leaves
        for group, (_, s) in zip(self.first.param_groups if self.first else (), self.sets, strict=True):
            assert self.first
            _cut(self.first, group, [leaves[i] for i in s])
        if self.second:
            _cut(self.second, self.second.param_groups[0], [leaves[i] for i in self.then])

    def step(self, losses: Tensor) -> None:
        """One step down these losses [k], or this loss: each moves its own client only."""
        if not self.first:
            return
        self.first.zero_grad()
        losses.sum().backward()  # client k's loss reaches only row k, and SGD and Adam act per coordinate
        if self.phase.clip:
            for s in self.bounded:
                clip_norms([g for i in s if (g := self.leaves[i].grad) is not None], self.phase.clip, self.lead)
        self.first.step()

    def step_again(self, losses: Tensor) -> None:
        """The phase's second step."""
        if not (self.first and self.second):
            return
        self.first.zero_grad()
        losses.sum().backward()
        self.second.step()


def clip_norms(grads: list[Tensor], bound: float, lead: int) -> None:
    """Scale each client's gradients, in place, so that their norm together is at most `bound` (as torch's clipping)."""
    if grads:
        squares = [g.reshape(*g.shape[:lead], -1).square().sum(-1) for g in grads]
        norm = torch.stack(squares).sum(0).sqrt()  # [k], or a scalar
        scale = (bound / (norm + 1e-6)).clamp(max=1)
        for g in grads:
            g.mul_(scale.view(*scale.shape, *[1] * (g.dim() - lead)))


def rate(phase: Phase, work: Scenario, cooled: float) -> float:
    """A phase's learning rate: its own, or the scenario's as it has cooled."""
    return work.lr * cooled if phase.lr is None else phase.lr


def trained_names(net: nn.Module, trained: tuple[str, ...]) -> list[str]:
    """The full names of the parameters of these parts."""
    return [n for n, _ in net.named_parameters() if part_of(n) in trained]


def _cut(optimizer: torch.optim.Optimizer, group: dict[str, Any], leaves: list[Tensor]) -> None:
    """A group of an optimiser's leaves replaced by their first clients, its state cut to these."""
    for old, leaf in zip(group["params"], leaves, strict=True):
        state = optimizer.state.pop(old, {})
        optimizer.state[leaf] = {
            n: v[: len(leaf)] if isinstance(v, Tensor) and v.dim() else v for n, v in state.items()
        }
    group["params"] = leaves
