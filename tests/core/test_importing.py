"""The garbage collector rests while much is imported, and not a moment longer."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from fedtune.core.importing import quick_imports


def test_the_collector_rests_meanwhile_and_is_as_it_was_after() -> None:
    assert gc.isenabled()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), quick_imports():
        raise ZeroDivisionError  # as an import that fails
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled(), "who had switched it off finds it so"
    finally:
        gc.enable()


def test_what_was_imported_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with quick_imports():
        made: list[object] = [[]]
    assert _is_looked_through(made), "nothing was imported: who calls a command again has garbage, not modules"
    with quick_imports():
        monkeypatch.setitem(sys.modules, "fedtune.new", types.ModuleType("fedtune.new"))
    assert not _is_looked_through(made)


def _is_looked_through(thing: object) -> bool:
    """Whether the collector would look at it: what is frozen is in no generation."""
    return any(one is thing for one in gc.get_objects())
