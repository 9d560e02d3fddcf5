"""Every algorithm of a kept comparison with FedAvg's tuned values."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from fedtune.analysis import borrowed
from fedtune.core.errors import UserError


def row(algorithm: str, configuration: str, search: int, acc: float, **config: float) -> dict:
    """A run on the first fresh seed of a search."""
    of_run = {"algorithm": algorithm, "configuration": configuration, "seed": 6 * search, "search": search}
    of_run |= {"chosen": configuration == "top 1", "test_acc": acc, "reason": "" if acc == acc else "diverged"}
    return of_run | {f"config/{name}": value for name, value in config.items()}


OWN = {"fedavg": {}, "fedavg-again": {}, "fedprox": {"mu": 0.01}, "gfpl": {"lam": 2.0, "retrain_lr": 0.01}}
RUNS = pd.DataFrame(
    [
        row(name, "default", k, 0.5 + k / 100, lr=0.01, momentum=0.5, **own)
        for name, own in OWN.items()
        for k in (1, 2, 3)
    ]
    + [
        row(name, "top 1", k, 0.7 + k / 50, lr=0.1 * k, momentum=0.9, **own)
        for name, own in OWN.items()
        for k in (1, 2, 3)
    ]
)


def test_each_search_borrows_from_fedavgs_of_its_number_and_keeps_its_own_defaults() -> None:
    found = borrowed.configurations(RUNS)
    assert set(found["algorithm"]) == {"fedprox", "gfpl"}
    of = {(r.algorithm, r.search): (r.seed, r.config) for r in found.itertuples()}
    for k in (1, 2, 3):
        lent = {"lr": pytest.approx(0.1 * k), "momentum": 0.9}
        assert of["fedprox", k] == (6 * k, lent | {"mu": 0.01})
        assert of["gfpl", k] == (6 * k, lent | {"lam": 2.0})  # retrain_lr is open by default: it follows lr
    with pytest.raises(UserError, match="tuned runs of fedavg"):
        borrowed.configurations(RUNS[~RUNS["chosen"]])


def test_what_tuning_is_worth_beyond_borrowed_values_is_paired_by_search() -> None:
    runs = [row("fedprox", "borrowed", k, 0.6 + k / 25) for k in (1, 2, 3)]
    runs += [row("gfpl", "borrowed", k, math.nan if k == 2 else 0.6) for k in (1, 2, 3)]
    table, means = borrowed.judged(RUNS, pd.DataFrame(runs))
    assert table["algorithm"].tolist() == ["fedprox"], "one with a diverged run is not counted"
    differences = [100 * (0.7 + k / 50 - 0.6 - k / 25) for k in (1, 2, 3)]
    assert table["mean"].item() == pytest.approx(sum(differences) / 3) == pytest.approx(means["tuned − borrowed"].mean)
    assert means["borrowed − default"].mean == pytest.approx(100 * sum(0.1 + 3 * k / 100 for k in (1, 2, 3)) / 3)
    assert means["tuned − default"].mean == pytest.approx(100 * sum(0.2 + k / 100 for k in (1, 2, 3)) / 3)
    assert "Runs with FedAvg's values that diverged: gfpl 1." in borrowed.text(RUNS, pd.DataFrame(runs), "it")
