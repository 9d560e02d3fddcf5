"""Figures of the page of results are those of the kept tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fedtune.core import statistics
from fedtune.core.statistics import interval

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "background" / "results.md").read_text()
TABLES = ROOT / "analysis" / "results" / "tables"


def ended(name: str) -> pd.DataFrame:
    """Validation accuracy after the last round in %, by seed, a column for each rate of fine-tuning."""
    table = pd.read_parquet(TABLES / f"{name}.parquet")
    return 100 * table[table["round"] == 20].pivot(index="seed", columns="tune_lr", values="val_acc").astype(float)


def test_fedbabus_fine_tuning() -> None:
    everything, head = ended("fedbabu-tune-all"), ended("fedbabu-tune-head")
    assert len(everything) == len(head) == 10
    for row, reached in (
        ("| head | 0.196, the clients' |", head[0.196]),
        ("| body and head | 0.001, the code's |", everything[0.001]),
        ("| body and head | 0.03 |", everything[0.03]),
    ):
        assert f"{row} {interval(*statistics.mean(reached), '.1f')} | 0 of 10 |" in PAGE
    assert np.isnan(everything[0.196]).all() and "| body and head | 0.196, the clients' | – | 10 of 10 |" in PAGE
    apart = statistics.paired(everything[0.001], head[0.196])
    assert f"the code's way is {interval(apart.mean, apart.half, '.1f')} points above the head alone" in PAGE


def test_fedavg_fts_fine_tuning() -> None:
    found, babu = ended("fedavgft-tune-all"), ended("fedbabu-tune-all")
    of = {rate: interval(*statistics.mean(found[rate]), ".1f") for rate in found}
    assert f"reaches {of[0.06896]} at the clients' rate, {of[0.03]} at 0.03 and {of[0.001]} at 0.001" in PAGE
    apart = statistics.paired(babu[0.001], found[0.03])
    assert f"is {interval(apart.mean, apart.half, '.1f')} points\nabove FedAvg-FT at the best" in PAGE
