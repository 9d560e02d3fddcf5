"""All algorithms for tests of what the engine does with their methods: a few in README's command, the others long."""

from itertools import combinations_with_replacement
from typing import Any

import pytest

from fedtune.experiment.algorithm import Algorithm
from fedtune.experiment.registry import find, names


def methods(name: str) -> list[str]:
    """The methods of an algorithm that are not FedAvg's."""
    mine = find(name)
    return [n for n, m in vars(Algorithm).items() if n[0] != "_" and callable(m) and getattr(mine, n) is not m]


def by_pairs() -> frozenset[str]:
    """A few algorithms with any two methods in one of them that any algorithm has both of."""
    pairs = {name: {*combinations_with_replacement(methods(name), 2)} for name in names()}
    left, few = set().union(*pairs.values()), {"fedavg"}
    while left:
        few.add(best := max(names(), key=lambda name: len(pairs[name] & left)))
        left -= pairs[best]
    return frozenset(few)


FEW = by_pairs()


def every(turn: int | None = None) -> list[Any]:
    """The parameters of a test of all algorithms; of two tests that take turns each has half of the few."""
    few = FEW if turn is None else sorted(FEW)[turn::2]
    return [pytest.param(name, marks=[pytest.mark.long] * (name not in few)) for name in names()]
