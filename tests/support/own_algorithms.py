"""Algorithms that tests write themselves, found by name as those of `trainables/` are."""

from __future__ import annotations

import pytest

from fedtune.federated import registry
from fedtune.federated.algorithm import Algorithm


def known_as(monkeypatch: pytest.MonkeyPatch, **classes: type[Algorithm]) -> None:
    """From now on these names are algorithms too, for as long as the test runs."""
    find, names = registry.find, registry.names
    monkeypatch.setattr(registry, "find", lambda name: classes[name] if name in classes else find(name))
    monkeypatch.setattr(registry, "names", lambda: sorted([*names(), *classes]))
