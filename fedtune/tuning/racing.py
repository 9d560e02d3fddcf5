"""A racing rung: the best of a rung are trained on another seed, too, and ranked by the mean."""

from __future__ import annotations

from collections.abc import Callable

from fedtune.tuning.promotion import Promotion, Rung, Rungs

WIDER = 2  # so many times as many are trained again as can be promoted


class RacingRungs(Rungs):
    """The rule of promotion, but of each rung the best 2 ⌊n / η⌋ are ranked by their mean over two seeds."""

    def __init__(self, like: Rungs, another: Callable[[str, int], float]) -> None:
        """another: a trial's figure on another seed after so many rounds, for which it is trained when asked first."""
        self.rungs, self.reduction, self.sign, self.another = like.rungs, like.reduction, like.sign, another

    def _ranked(self, rung: Rung) -> list[str]:
        order = super()._ranked(rung)
        few = WIDER * int(len(order) / self.reduction)
        if not few:
            return order
        t = round(rung.milestone)
        means = {trial: (rung.reached[trial][1] + self.another(trial, t)) / 2 for trial in order[:few]}
        return [*sorted(means, key=lambda trial: -self.sign * means[trial]), *order[few:]]


def race(scheduler: Promotion, another: Callable[[str, int], float]) -> None:
    """Have a promotion rank its rungs so."""
    scheduler.rungs = RacingRungs(scheduler.rungs, another)
