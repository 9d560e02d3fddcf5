"""The clients' optimisers in a phase, for its step and its second step, with lr_scale and clipping.

The updates are torch.optim's SGD and Adam bit for bit, as operations on lists of tensors.  torch.optim's classes take
as long as a small net's backward pass, and their first use imports a compiler for over a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedtune.experiment.algorithm import Phase, part_of
from fedtune.experiment.scenario import Scenario


class Optimizers:
    """The optimisers of a phase's step and second step.  lead: the number of client axes of a tensor, 0 or 1."""

    def __init__(
        self, *, phase: Phase, work: Scenario, cooled: float, names: list[str], leaves: list[Tensor], lead: int
    ) -> None:
        """names: of the leaves, as in `trained_names`.  cooled: the decay factor of the clients' learning rate."""
        self.lead, self.bound = lead, work.clip_norm if phase.clip is None else phase.clip
        own = [part_of(n) if part_of(n) in phase.lr_scale else "" for n in names]
        sets = [[i for i, part in enumerate(own) if part == of] for of in (*phase.lr_scale, "")]
        self.bounded = [s for s in sets if s]  # groups that are clipped together
        by_scale: dict[float, list[int]] = {}
        for i in (i for s in self.bounded for i in s):
            pace = work.body_lr_scale if part_of(names[i]) == "body" else 1.0
            by_scale.setdefault(phase.lr_scale.get(own[i], 1.0) * pace, []).append(i)
        lr, after = rate(phase, work, cooled), phase.after
        make = _adam if is_adam(phase, work) else _sgd(momentum(phase, work))
        decay = 0.0 if phase.plain else work.weight_decay
        self.first = _Rules([(s, partial(make, lr * times, decay)) for times, s in by_scale.items()], leaves)
        self.second = _Rules([], leaves)
        if after and (second := [i for i, n in enumerate(names) if part_of(n) in after.train]):
            make = {"adam": _adam, "sgd": _sgd(0.0)}[after.optimizer]
            self.second.rules = [(second, partial(make, lr if after.lr is None else after.lr, 0.0))]

    def cut(self, leaves: list[Tensor]) -> None:
        """Continue with the clients still at work: reduce the leaves and their optimiser state to them."""
        for rules in (self.first, self.second):
            rules.cut(leaves)

    @torch.inference_mode()
    def step(self, grads: Sequence[Tensor | None]) -> None:
        """One step along the leaves' gradients, which it may overwrite."""
        if self.bound:
            for s in self.bounded:
                clip_norms([g for i in s if (g := grads[i]) is not None], self.bound, self.lead)
        self.first.move(grads)

    @torch.inference_mode()
    def step_again(self, grads: Sequence[Tensor | None]) -> None:
        """The phase's second step."""
        self.second.move(grads)


_Averages = list[dict[str, Tensor]]  # moving averages of each leaf, by name
# updates leaves from gradients and moving averages; all have made the same number of steps before
_Rule = Callable[[list[Tensor], list[Tensor], _Averages, int], None]


class _Rules:
    """An optimiser: which rule updates which leaves, and for each leaf its moving averages and number of steps."""

    def __init__(self, rules: list[tuple[list[int], _Rule]], leaves: list[Tensor]) -> None:
        self.rules, self.leaves = rules, leaves
        self.averages: _Averages = [{} for _ in leaves]
        self.steps = [0] * len(leaves)

    def cut(self, leaves: list[Tensor]) -> None:
        self.leaves, pairs = leaves, zip(self.averages, leaves, strict=True)
        self.averages = [{n: t[: len(leaf)] for n, t in old.items()} for old, leaf in pairs]

    def move(self, grads: Sequence[Tensor | None]) -> None:
        """Update every leaf that has a gradient by its rule; a leaf without one is not changed, nor is its state."""
        for all_of, rule in self.rules:
            moved = [(i, g) for i in all_of if (g := grads[i]) is not None]
            for steps in dict.fromkeys(self.steps[i] for i, _ in moved):
                batch = [(i, g) for i, g in moved if self.steps[i] == steps]
                leaves, averages = [self.leaves[i] for i, _ in batch], [self.averages[i] for i, _ in batch]
                rule(leaves, [g for _, g in batch], averages, steps)
            for i, _ in moved:
                self.steps[i] += 1


def _sgd(momentum: float) -> Callable[..., None]:

    def step(lr: float, decay: float, leaves: list[Tensor], grads: list[Tensor], memory: _Averages, steps: int) -> None:
        if decay:
            grads = [*torch._foreach_add(grads, leaves, alpha=decay)]
        if momentum and not steps:
            for averages, g in zip(memory, grads, strict=True):
                averages["mean"] = g.clone()
        elif momentum:
            means = [averages["mean"] for averages in memory]
            torch._foreach_mul_(means, momentum)
            torch._foreach_add_(means, grads, alpha=1)
            grads = means
        torch._foreach_add_(leaves, grads, alpha=-lr)

    return step


def _adam(lr: float, decay: float, leaves: list[Tensor], grads: list[Tensor], memory: _Averages, steps: int) -> None:
    """torch.optim.Adam's step, with its defaults."""
    if not steps:
        for averages, leaf in zip(memory, leaves, strict=True):
            averages |= {"mean": torch.zeros_like(leaf), "square": torch.zeros_like(leaf)}
    means, squares = [averages["mean"] for averages in memory], [averages["square"] for averages in memory]
    if decay:
        grads = [*torch._foreach_add(grads, leaves, alpha=decay)]
    torch._foreach_lerp_(means, grads, 1 - 0.9)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, grads, grads, 1 - 0.999)
    t = float(steps + 1)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, (1 - 0.999**t) ** 0.5)
    torch._foreach_add_(roots, 1e-8)
    torch._foreach_addcdiv_(leaves, means, roots, -(lr / (1 - 0.9**t)))


def clip_norms(grads: list[Tensor], bound: float, lead: int) -> None:
    """Scale each client's gradients in place so that their total norm is at most `bound` (as torch's clipping)."""
    if grads:
        squares = [g.reshape(*g.shape[:lead], -1).square().sum(-1) for g in grads]
        norm = torch.stack(squares).sum(0).sqrt()  # [k], or a scalar
        scale = (bound / (norm + 1e-6)).clamp(max=1)
        for g in grads:
            g.mul_(scale.view(*scale.shape, *[1] * (g.dim() - lead)))


def rate(phase: Phase, work: Scenario, cooled: float) -> float:
    """A phase's learning rate: its own, or the scenario's after decay."""
    return work.lr * cooled if phase.lr is None else phase.lr


def momentum(phase: Phase, work: Scenario) -> float:
    """A phase's momentum: none, its own, or the scenario's."""
    return 0.0 if phase.plain else work.momentum if phase.momentum is None else phase.momentum


def is_adam(phase: Phase, work: Scenario) -> bool:
    """Whether Adam makes a phase's steps."""
    return work.optimizer == "adam" and not phase.plain


def path(part: str, phase: Phase, work: Scenario, cooled: float, steps: Tensor) -> Tensor:
    """How far SGD moves a part of clients [m] in this number of steps along a constant gradient of size one.

    With momentum β, step s has length (1 - β^s) / (1 - β), S steps together S / (1 - β) - β (1 - β^S) / (1 - β)².
    Adam's path is η per step.
    """
    times = phase.lr_scale.get(part, 1.0) * (work.body_lr_scale if part == "body" else 1.0)
    beta = 0.0 if is_adam(phase, work) else momentum(phase, work)
    length = steps / (1 - beta) - beta * (1 - beta**steps) / (1 - beta) ** 2
    return rate(phase, work, cooled) * times * length


def trained_names(net: nn.Module, trained: tuple[str, ...]) -> list[str]:
    """The full names of the parameters of these parts."""
    return [n for n, _ in net.named_parameters() if part_of(n) in trained]
