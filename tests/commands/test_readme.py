"""README's tables and commands are true."""

import re
from pathlib import Path

import pytest

from fedtune.__main__ import COMMANDS
from fedtune.core.hyper import knobs
from fedtune.core.metrics import METRICS
from fedtune.data.datasets import names as dataset_names
from fedtune.federated import registry
from fedtune.federated.scenario import Scenario
from fedtune.tuning.schedulers import SCHEDULERS, SEARCHERS

README = (Path(__file__).parents[2] / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`|]+)` \|", text, flags=re.M)


def test_table_of_algorithms_is_that_of_the_code():
    assert first_cells(section("Algorithms")) == registry.names()


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


def preset_rows() -> list[str]:
    """A row per hyperparameter and pair of values: which algorithms' as_published differs how from their defaults."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for name in registry.names():
        own, presets = knobs(registry.find(name)), registry.find(name).presets
        for knob, value in presets.get("as_published", {}).items():
            text = str(own[knob].default) if knob in own else "the scenario's"
            key = (knob, text, str(value), (own.get(knob) or knobs(Scenario)[knob]).help)
            rows.setdefault(key, []).append(name)
    return [f"| `{k}` | {', '.join(who)} | {text} | {value} | {what} |" for (k, text, value, what), who in rows.items()]


def test_table_of_presets_is_that_of_the_code():
    found = [line for line in section("As the text says, as the code does").splitlines() if line.startswith("| `")]
    assert found == preset_rows()


@pytest.mark.parametrize("name", registry.names())
def test_presets_hold_hyperparameters_that_there_are_and_values_that_may_be(name: str):
    known = knobs(Scenario) | knobs(registry.find(name))
    for values in registry.find(name).presets.values():
        assert {n: known[n].check(v) for n, v in values.items()} == values
