"""What algorithms share is searched over one range for all; the ranges are declared here and nowhere else.

    default = with_shared(FedProx, "mu")             # its own μ over all its range, and what all share
    wide = with_shared(FedProx, "mu", wide=True)

A comparison is fair only if no algorithm has a wider learning rate than another.  An algorithm whose clients adapt
before they are scored declares `tune_epochs`, `tune_lr` and, if it has the choice, `tune`; all such search these too.

Exceptions, by rule and for all: Adam's steps have the size of the rate, whatever the gradient, so that its rates are
smaller (`ADAM`).  A trial of many rounds has fewer epochs in each (`LONGEST`).  What a single space leaves out, it says
with a reason (`without`).

`participation` is in no space, as it changes what a round costs; `--vary participation` searches it.

Nor is `server_lr` here, as it means different things: a factor on a mean update (SCAFFOLD, 1 is FedAvg), the step of an
adaptive optimiser (FedAdam), the rate of a server's own training (FedTGP).  Nor are `batch_norm`, `averaging` and
`optimizer`: a comparison fixes how models are averaged and who steps.
"""

from __future__ import annotations

from typing import Any

from ray.tune.search.sample import Domain

from fedtune.core import hyper
from fedtune.core.hyper import Hyperparameter, hyperparameters
from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.scenario import Scenario
from fedtune.tuning.space_types import ByRounds, Under

WHOLE = (None, None)  # all of the declared range, or all choices
Ends = tuple[float | None, float | None]

# in every space `default`, and in that of an algorithm without a file
DEFAULT: dict[str, Ends] = {
    "lr": (1e-3, 0.3),
    "momentum": (0.0, 0.95),
    "local_epochs": (1, 20),
    "tune_epochs": (1, 20),
    "tune_lr": (1e-4, 0.3),
    "tune": WHOLE,
}
LONGEST = 600  # local epochs of a whole trial in `default`, where that leaves at least FEWEST a round
FEWEST = 5
# in every space `wide`
WIDE: dict[str, Ends] = {
    "lr": (1e-4, 1.0),
    "lr_decay": (0.95, 1.0),
    "momentum": (0.0, 0.99),
    "weight_decay": (1e-6, 1e-2),
    "clip_norm": (0.1, 100.0),
    "batch": (4, 64),
    "local_epochs": (1, 20),
    "tune_epochs": (1, 50),
    "tune_lr": (1e-5, 1.0),
    "tune": WHOLE,
}
# rates where the clients' optimiser is Adam
ADAM: dict[str, Ends] = {"lr": (1e-5, 1e-2), "tune_lr": (1e-5, 1e-2)}


def with_shared(
    cls: type[Algorithm], *own: str, wide: bool = False, without: str = "", **narrowed: tuple[float, float]
) -> dict[str, Any]:
    """A space of these hyperparameters of an algorithm and of those that all algorithms share, over common ranges.

    own        searched over all their declared range
    wide       the ranges of `WIDE` instead of `DEFAULT`
    without    the reason why it searches nothing that is shared; "": it does
    narrowed   its own hyperparameters that are searched over a narrower range

    >>> from fedtune.tuning.space import with_shared
    >>> from fedtune.trainables.fedprox import FedProx
    >>> list(with_shared(FedProx, "mu"))
    ['mu', 'lr', 'momentum', 'local_epochs']
    """
    ranges, declared = WIDE if wide else DEFAULT, hyperparameters(Scenario) | hyperparameters(cls)
    if twice := [name for name in (*own, *narrowed) if name in {**DEFAULT, **WIDE}]:
        raise ValueError(f"what all share has one range for all, but {cls.__name__}'s space names {', '.join(twice)}")
    space: dict[str, Any] = {name: hyper.find(name, cls, Scenario).domain() for name in own}
    space |= {name: hyper.find(name, cls, Scenario).domain(*ends) for name, ends in narrowed.items()}
    shared = () if without else (name for name in ranges if name in declared)
    return space | {name: domain(declared[name], ranges[name], wide) for name in shared}


def domain(hp: Hyperparameter, ends: Ends, wide: bool = False) -> Domain | Under | ByRounds:
    """The domain of a hyperparameter that all share."""
    if hp.name == "local_epochs" and not wide:
        return ByRounds(lambda rounds: hp.domain(ends[0], min(ends[1] or FEWEST, max(FEWEST, LONGEST // rounds))))
    usual = hp.domain(*ends)
    return Under("optimizer", {"sgd": usual, "adam": hp.domain(*ADAM[hp.name])}) if hp.name in ADAM else usual


def of_undeclared(hp: Hyperparameter) -> Domain | Under | ByRounds:
    """The domain in a space that nobody wrote: as in every `default`, if what is declared is no narrower."""
    low, high = DEFAULT.get(hp.name, WHOLE)
    fits = None not in (low, high, hp.low, hp.high) and hp.low <= low and high <= hp.high  # type: ignore[operator]
    return domain(hp, (low, high)) if fits else hp.domain()
