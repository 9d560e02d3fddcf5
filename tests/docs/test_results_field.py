"""What the page of results says of the field is what the kept tables hold."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import stats
from support.results_page import PAGE as FILE
from support.results_page import RESULTS

PAGE = FILE.read_text()


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
    worth = (RESULTS / f"{name}-worth.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", worth, re.MULTILINE)
    default, tuned = (np.array([float(row[i]) for row in rows if row[0] != "fedbn"]) for i in (1, 2))
    assert len(default) == 25 and gain.format(gain=(tuned - default).mean()) in PAGE
    assert f"and {stats.kendalltau(default, tuned).statistic:.2f} without FedBN" in PAGE
    ((lr, momentum, searches),) = re.findall(r"^\| all \| (\d+) % \| (\d+) % .*? \| (\d+) \|  \|$", worth, re.MULTILINE)
    every, n = int(lr) + int(momentum), int(searches)
    assert f"{every} %" in PAGE and rates.format(rates=(n * every - 5 * 100) / (n - 5)) in PAGE
