"""Figures of the page of results are those of the kept tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

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


@pytest.mark.parametrize(
    ("name", "gain", "rates"),
    [
        ("field-few", "without it, 25 algorithms gain {gain:.1f}", "Without these five it is {rates:.0f} %"),
        ("field-dir0.3", "and {gain:.1f} without FedBN", "had nothing else to search it is {rates:.0f} %"),
    ],
)
def test_what_tuning_is_worth_without_the_control_and_without_searches_of_rates_alone(
    name: str, gain: str, rates: str
) -> None:
    """FedBN is FedAvg here; FedAvg, FedBN, FedPer, LG-FedAvg and Local searched learning rate and momentum alone."""
    worth = (TABLES.parent / f"{name}-worth.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", worth, re.MULTILINE)
    default, tuned = (np.array([float(row[i]) for row in rows if row[0] != "fedbn"]) for i in (1, 2))
    assert len(default) == 25 and gain.format(gain=(tuned - default).mean()) in PAGE
    assert f"and {stats.kendalltau(default, tuned).statistic:.2f} without FedBN" in PAGE
    ((lr, momentum, searches),) = re.findall(r"^\| all \| (\d+) % \| (\d+) % .*? \| (\d+) \|  \|$", worth, re.MULTILINE)
    every, n = int(lr) + int(momentum), int(searches)
    assert f"{every} %" in PAGE and rates.format(rates=(n * every - 5 * 100) / (n - 5)) in PAGE
