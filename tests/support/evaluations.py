"""Runs on fresh seeds by hand: the rows of a comparison's evaluations, and what its searches cost."""

from collections.abc import Iterable
from typing import Any

COSTS = {"comm_mb": 5.0, "rounds_to_95": 2, "mb_to_95": 1.0, "mb_per_round": 1.0, "seconds": 1.0}


def evaluated(name: str, configuration: str, seed: int, **figures: Any) -> dict[str, Any]:
    """A run on a fresh seed; `top 1` is what its search chose."""
    whose = {"algorithm": name, "configuration": configuration, "chosen": configuration == "top 1", "seed": seed}
    return whose | {"test_acc_std": 0.1, "test_acc_worst10": 0.1} | COSTS | {"config/lr": 0.1} | figures


def spent(names: Iterable[str]) -> dict[str, dict[str, float]]:
    """What searches cost."""
    return {n: {"trials": 4, "rounds": 40, "mb": 20.0, "seconds": 9.0} for n in names}
