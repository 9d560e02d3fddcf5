"""The snippets of docs/your-own.md do what the page says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import DIGITS, numbers, play, random_federation, simulate

import trainables
from fedtune.data.datasets import Source
from fedtune.federated import registry
from fedtune.federated.algorithm import Algorithm
from fedtune.federated.experiment import Experiment
from fedtune.federated.scenario import Scenario
from fedtune.nn import architectures, catalogue
from fedtune.tuning import space

PAGE = (Path(__file__).parents[2] / "docs" / "your-own.md").read_text()


def snippet(title: str) -> str:
    """The first Python block under a heading."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.split(f"## {title}\n")[1], re.M | re.S)[0]


@pytest.fixture
def fednorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's algorithm, as if its file lay in `trainables/`."""
    (tmp_path / "fednorm.py").write_text(snippet("An algorithm"))
    monkeypatch.setattr(trainables, "__path__", [*trainables.__path__, str(tmp_path)])
    known = registry.names()
    monkeypatch.setattr(registry, "names", lambda: sorted([*known, "fednorm"]))


@pytest.mark.usefixtures("fednorm")
def test_the_algorithm_is_fedavg_without_its_penalty_and_another_with_it() -> None:
    data = random_federation([5, 9, 7])
    plain, zero, pulled = (
        simulate(name, DIGITS, data, **config)
        for name, config in (("fedavg", {}), ("fednorm", {"lam": 1e-4}), ("fednorm", {"lam": 1.0}))
    )
    assert plain.setting.algorithm != zero.setting.algorithm
    for sim in (plain, zero, pulled):
        play(sim, 2)
    features = [sim.state.server["shared"]["head.weight"] for sim in (plain, zero, pulled)]
    assert (features[0] - features[1]).abs().max() < (features[0] - features[2]).abs().max()


def test_the_table_of_methods_has_their_arguments() -> None:
    rows = re.findall(r"^\| `(\w+)\((.*)\)` \|", PAGE, re.M)
    assert len(rows) > 8
    for name, arguments in rows:
        assert ["self", *arguments.split(", ")] == [*inspect.signature(getattr(Algorithm, name)).parameters]


def test_the_space_is_read_from_any_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(snippet("A search space"))
    loaded = space.load(str(file), Experiment("fedproto", Scenario()))
    assert sorted(loaded.names) == ["lam", "momentum", "optimizer"] and loaded.conditions == {
        "momentum": {"optimizer": ("sgd",)}
    }


def test_the_data_set_is_a_source_of_torchvision() -> None:
    from fedtune.core.torchvision_import import datasets

    names: dict[str, Any] = {}
    exec(snippet("A data set").replace("Source(", "source = Source(", 1), names)
    assert isinstance(names["source"], Source) and hasattr(datasets, names["source"].reader)


def test_the_model_trains_in_a_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(snippet("A model"), names)
    monkeypatch.setitem(architectures.BODIES, "linear", names["linear_body"])
    monkeypatch.setitem(catalogue.WIDTHS, "linear", 12)
    scenario = DIGITS.override(model="linear")
    data = random_federation([5, 9, 7])
    stacked, looped = (simulate("fedavg", scenario, data, executor=executor) for executor in ("stack", "loop"))
    play(stacked, 2), play(looped, 2)
    for name, tensor in numbers(stacked.state).items():
        torch.testing.assert_close(tensor, numbers(looped.state)[name])
