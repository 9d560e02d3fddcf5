"""The small cases in which checks run: few clients, few rows, and everything that may differ between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedtune.data.datasets import describe, has_tokens
from fedtune.data.federation import Federation, Split
from fedtune.experiment import partitioning
from fedtune.experiment.scenario import OF_DEVICES, Scenario

TINY = Scenario(
    model="mlp",
    features=12,
    clients=5,
    ways=3,
    ways_spread=1,
    shots=8,
    shots_spread=4,
    val_shots=2,
    test_shots=2,
    all_classes=0,
    batch=8,
)
# rows of four clients, and their classes: three clients hold class 1, one holds 4, none holds 2 or 5
SIZES = [9, 6, 8, 5]
HOLDERS = [[0, 1], [1], [0, 1, 3], [3, 4, 0]]
THREE = {"local_steps": 3}


class CheckedScenario(NamedTuple):
    """One small case: a scenario in words, and how it is run."""

    words: str
    scenario: Scenario
    make: Callable[[Scenario, int], Federation]  # the data, for a seed
    values: Mapping[str, Any] = {}  # hyperparameters of the scenario
    rounds: int = 3  # the first round with a model averaged twice is the third; 2 where other cases have it
    resumes: bool = False  # whether its runs are resumed from every round
    atol: float = 1e-12  # in double precision
    dropout: float = 0.0  # a share of the features that training drops


def random_federation(
    train: Sequence[int],
    classes: Sequence[Sequence[int]] | None = None,
    shape: tuple[int, ...] = (1, 8, 8),
    total: int = 4,
    seed: int = 0,
    other: int = 3,
    scale: float = 1.0,
) -> Federation:
    """Client k has train[k] random training rows of the classes classes[k], and `other` for validation and test."""
    rng = np.random.default_rng(seed)
    labels, splits, start = [], [], 0
    for sizes in (list(train), [other] * len(train), [other] * len(train)):
        width = max(sizes)
        table = np.zeros((len(sizes), width), np.int64)
        for k, n in enumerate(sizes):
            held = np.arange(total) if classes is None else np.array(classes[k])
            labels.append(held[np.arange(n) % len(held)])
            table[k] = start
            table[k, :n] = start + np.arange(n)
            start += n
        splits.append(Split(table, np.array(sizes)))
    y = np.concatenate(labels)
    # a class is a random picture plus noise, so that there is something to learn
    x = rng.normal(size=(total, *shape))[y] + rng.normal(size=(len(y), *shape))
    return Federation((scale * x).astype(np.float32), y, total, *splits)


@cache
def _partitioned(scenario: Scenario, seed: int) -> Federation:
    return partitioning.make(scenario, seed)


def _rows(sizes: Sequence[int], classes: Sequence[Sequence[int]] | None = None, total: int = 4) -> Callable[..., Any]:

    def make(scenario: Scenario, seed: int) -> Federation:
        *shape, available = describe(scenario.dataset, scenario.image_size, scenario.x_as)
        count = min(total, available)
        classes_held = [[c % count for c in of_client] for of_client in classes] if classes else None
        f = random_federation(sizes, classes_held, tuple(shape), count, seed)
        return f._replace(x=(f.x > 0).astype(np.int64)) if has_tokens(scenario.dataset, scenario.x_as) else f

    return make


alike = _rows([8] * 4)  # four clients with equally many rows, so that weights by rows are none


class Cases(NamedTuple):
    """The cases in which an algorithm's checks run."""

    few: CheckedScenario  # most checks use this one: three of five clients take part
    everyone: CheckedScenario
    adam: CheckedScenario
    skewed: CheckedScenario
    steps: CheckedScenario
    averaged: CheckedScenario
    personal: CheckedScenario
    holders: CheckedScenario
    alone: CheckedScenario
    chance: CheckedScenario
    mixed: CheckedScenario | None
    effects: CheckedScenario


def cases(base: Scenario | None = None) -> Cases:
    """All cases, on 8×8 digits and small nets, or on random rows with the data's shape and the model of a scenario."""
    ours = base is None
    start = TINY
    if base:  # its data shape, model and local work, with few clients who all take part
        few = {"clients": 5, "participation": 1.0, "evaluation": "personal", "eval_clients": 0, "all_classes": 0}
        few |= {"sampling": "fixed"} | {f.name: f.default for f in fields(Scenario) if f.name in OF_DEVICES}
        start = replace(base, rounds=TINY.rounds, **few)  # type: ignore[arg-type]
    data = _partitioned if ours else _rows([5, 13, 9, 2, 7])
    unequal = _rows([5, 13, 9, 2]) if ours else data
    epochs = {"local_epochs": 2, "batch": 5} | ({} if ours else {"local_steps": 0})
    momentum = {"weight_decay": 0.01, "momentum": 0.9} | ({"batch": 32} if ours else {"batch": 16, "optimizer": "sgd"})
    adam = {"optimizer": "adam", "lr": 0.003}
    norm = {"model": "fedgen-cnn", "features": 8}
    two: dict[str, Any] = {} if ours else {"rounds": 2}  # what takes long

    def case(words: str, make: Any = data, changes: Any = None, part: float = 1, **rest: Any) -> CheckedScenario:
        """changes: of our small scenario.  part: the share of clients that take part."""
        scenario = replace(start, participation=part)
        return CheckedScenario(words, replace(scenario, **(changes or {})) if ours else scenario, make, **rest)

    return Cases(
        few=case("3 of 5 clients take part", data, {"all_classes": 20}, 0.6, resumes=True),
        everyone=case("two epochs", data, {"ways_spread": 2, "shots": 5, "shots_spread": 3}, values=epochs, rounds=2),
        # Adam divides rounding errors around 0 by nearly 0
        adam=case("Adam", values=adam, atol=1e-12 if ours else 1e-8, **two),
        skewed=case("skewed clients", data, {"partition": "dirichlet", "alpha": 0.3, "floor": 12}, values=momentum),
        steps=case("three steps", data, {"model": "cnn8", "shots": 4, "shots_spread": 1}, values=THREE, rounds=2),
        averaged=case("BatchNorm averaged", unequal, norm, values={"batch_norm": "averaged"}, **two),
        personal=case("personal BatchNorm", unequal, norm, values={"batch_norm": "personal"}, rounds=2),
        holders=case("classes that only one client holds, or none", _rows(SIZES, HOLDERS, 6), None, 0.75, rounds=4),
        alone=case("a single client", _rows([11]), rounds=2),
        chance=case("a model with Dropout", data, None, 0.6, rounds=2, resumes=True, dropout=0.3),
        mixed=case("clients with different architectures", data, {"model": "htmini3"}, 0.8, rounds=2, resumes=True)
        if ours
        else None,
        effects=case("all clients", data, {"shots": 12, "clients": 4}, values={"batch": 16} if ours else {}),
    )
