"""Algorithms and models that tests write themselves, found by name as if they were of `trainables/` or a user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtune.core import own_files
from fedtune.federated import registry
from fedtune.federated.algorithm import Algorithm

NETS = Path(__file__).with_name("own_nets.py")


def known_as(monkeypatch: pytest.MonkeyPatch, **classes: type[Algorithm]) -> None:
    """From now on these names are algorithms too, for as long as the test runs."""
    find, names = registry.find, registry.names
    monkeypatch.setattr(registry, "find", lambda name: classes[name] if name in classes else find(name))
    monkeypatch.setattr(registry, "names", lambda: sorted([*names(), *classes]))


def own_net(name: str) -> str:
    """The canonical name of a model of `own_nets.py`."""
    return own_files.take(f"{NETS}:{name}")[0]
