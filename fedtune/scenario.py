"""A scenario is a setting by name: data set, partition, model, clients, local work, rounds and how it is scored.

Every field can be overridden; those declared with `hyper` can be searched as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from fedtune import datasets, models
from fedtune.errors import UserError, unknown
from fedtune.hyper import check_all, hyper, knobs

PARTITIONS = ("ways-shots", "dirichlet", "iid")
EVALUATIONS = ("personal", "global", "pooled")


@dataclass(frozen=True)
class Scenario:
    """One setting.  Fields that a partition does not use are ignored by it."""

    dataset: str = "digits"
    model: str = "cnn8"
    features: int = 0  # D, the width of the features; 0: the model's own
    clients: int = 20  # K
    participation: float = 1.0  # share of the clients that take part in a round

    partition: str = "ways-shots"
    ways: int = 4  # w̄, classes of a client
    ways_spread: int = 1  # ŵ, half-width
    shots: int = 8  # s̄, training rows of a client per class
    shots_spread: int = 1  # ŝ, half-width
    val_shots: int = 4  # validation rows per class
    test_shots: int = 4  # test rows per class
    alpha: float = 0.1  # Dirichlet concentration
    floor: int = 10  # least rows of a client (dirichlet)
    val_share: float = 0.15  # of a client's rows (dirichlet, iid)
    test_share: float = 0.25

    rounds: int = 60  # T
    # personal: each client's own model on its own rows; global: the shared model on each client's rows;
    # pooled: the shared model on all clients' rows together
    evaluation: str = "personal"
    all_classes: int = 100  # test rows, as many of each class, that every client is scored on as well; 0: none

    batch: int = hyper(4, 1, 256, log=True, symbol="B", help="rows of a mini-batch")
    local_epochs: int = hyper(1, 1, 20, symbol="E", help="passes over a client's rows in a round")
    local_steps: int = hyper(0, 1, 1000, log=True, also=(0,), help="mini-batch steps in a round; 0: local_epochs")
    optimizer: str = hyper("sgd", choices=("sgd", "adam"), help="the clients' optimiser, new in every round")
    lr: float = hyper(0.01, 1e-5, 1.0, log=True, symbol="η", help="the clients' learning rate")
    momentum: float = hyper(0.5, 0.0, 0.99, help="of SGD")
    weight_decay: float = hyper(0.0, 1e-6, 0.1, log=True, also=(0.0,), help="L2 penalty in the optimiser")

    def __post_init__(self) -> None:
        """Validate what can be told without loading data; UserError otherwise."""
        for f in fields(self):
            if "knob" not in f.metadata:
                object.__setattr__(self, f.name, _typed(f.name, getattr(self, f.name), type(f.default)))
        check_all(self)
        for name, kind, known in (
            ("dataset", "data set", datasets.names()),
            ("model", "model", models.MODELS),
            ("partition", "partition", PARTITIONS),
            ("evaluation", "evaluation rule", EVALUATIONS),
        ):
            if getattr(self, name) not in known:
                raise unknown(kind, getattr(self, name), known)
        least = {"ways": 2, "shots": 2, "floor": 3}  # the partitions' own bounds
        for name in ("clients", "rounds", "ways", "shots", "val_shots", "test_shots", "floor"):
            if getattr(self, name) < least.get(name, 1):
                raise UserError(f"{name} must be at least {least.get(name, 1)}, but got {getattr(self, name)}")
        for name in ("features", "ways_spread", "shots_spread", "all_classes"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, but got {getattr(self, name)}")
        if not 0 < self.participation <= 1:
            raise UserError(f"participation must be in (0, 1], but got {self.participation}")
        if not 0 < self.alpha < math.inf:
            raise UserError(f"alpha must be above 0, but got {self.alpha}; 0.1 is strong label skew, 100 near iid")
        if not (self.val_share > 0 and self.test_share > 0 and self.val_share + self.test_share < 1):
            raise UserError(
                f"val_share and test_share must be above 0 and leave training rows, but got {self.val_share} and "
                f"{self.test_share}"
            )
        channels, height, _, classes = datasets.describe(self.dataset)
        if self.partition == "ways-shots" and self.ways > classes:
            raise UserError(f"ways must be at most the {classes} classes of {self.dataset}, but got {self.ways}")

    @property
    def participants(self) -> int:
        """m, the clients of a round: at least one."""
        return max(1, int(self.participation * self.clients + 0.5))

    def override(self, **values: Any) -> Scenario:
        """The same setting with some fields changed; UserError with the nearest name if there is no such field."""
        known = [f.name for f in fields(self)]
        for name in values:
            if name not in known:
                raise unknown("scenario field", name, known)
        return replace(self, **values)


def _typed(name: str, value: Any, kind: type) -> Any:
    try:
        if kind is int and float(value) != int(float(value)):
            raise ValueError
        return kind(float(value)) if kind is int else kind(value)
    except (TypeError, ValueError, OverflowError):
        word = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise UserError(f"{name} must be {word}, but got {value!r}") from None


_GFPL_MNIST = Scenario(
    model="fedproto-cnn", shots=100, shots_spread=2, ways_spread=2, val_shots=40, test_shots=40, rounds=100,
)  # fmt: skip
_DIRICHLET = Scenario(
    dataset="fashion-mnist", model="fedproto-cnn", partition="dirichlet", batch=10, momentum=0.0, floor=40, rounds=100,
)  # fmt: skip

SCENARIOS: dict[str, Scenario] = {
    "digits-w4": Scenario(),
    "digits-dir0.1": Scenario(partition="dirichlet", floor=20),
    # GFPL and FedProto (spec 3.4); Fashion-MNIST stands in for MNIST's shape
    **{f"gfpl-fmnist-w{w}": _GFPL_MNIST.override(dataset="fashion-mnist", ways=w) for w in (3, 4, 5)},
    "gfpl-mnist-w4": _GFPL_MNIST.override(dataset="mnist"),
    "gfpl-cifar10-w4": _GFPL_MNIST.override(
        dataset="cifar10", model="resnet18", ways_spread=1, shots_spread=1, val_shots=15, test_shots=15, batch=32,
        rounds=110,
    ),
    # label skew as in PFLlib: per class over clients, 25 % of each client's rows for test
    **{f"fmnist-dir{a:g}": _DIRICHLET.override(alpha=a) for a in (0.1, 0.3, 1.0)},
}  # fmt: skip


def find(name: str) -> Scenario:
    """The scenario of that name; UserError with the nearest one otherwise."""
    if name not in SCENARIOS:
        raise unknown("scenario", name, SCENARIOS)
    return SCENARIOS[name]


def tunable_names() -> list[str]:
    """The fields that can be searched."""
    return list(knobs(Scenario))
