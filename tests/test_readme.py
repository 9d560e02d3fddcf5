"""README's tables and commands are true."""

import re
from pathlib import Path

from fedtune import algorithm
from fedtune.__main__ import COMMANDS
from fedtune.datasets import names as dataset_names
from fedtune.metrics import METRICS
from fedtune.tuning import SCHEDULERS, SEARCHERS

README = (Path(__file__).parent.parent / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`|]+)` \|", text, flags=re.M)


def test_table_of_algorithms_is_that_of_the_code():
    assert first_cells(section("Algorithms")) == algorithm.names()


def test_table_of_metrics_is_that_of_the_code():
    rows = dict(re.findall(r"^\| `([^`|]+)` \| (.+) \|$", section("Metrics"), flags=re.M))
    assert rows == METRICS


def test_every_command_scheduler_searcher_and_data_set_is_named():
    for name in COMMANDS:
        assert f"fedtune {name}" in README
    assert " | ".join(SCHEDULERS) in README
    assert set(SEARCHERS) <= set(re.findall(r"`--searcher ([a-z0-9 |]+)`", README)[0].split(" | "))
    for name in dataset_names():
        assert f"`{name}`" in section("Data")
