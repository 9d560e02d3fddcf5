"""What is taken for state that outlives a trial: values that change, and not what a library has looked up in them."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from fedtune.engine.hidden_state import fingerprint

ROWS = {"client": [0, 0, 1], "label": ["a", "b", "a"], "rows": [3, 4, 5]}
FRAMES: dict[str, Callable[[], pd.DataFrame | pd.Series]] = {
    "plain": lambda: pd.DataFrame(ROWS),
    "by text": lambda: pd.DataFrame(ROWS).set_index("label"),
    "by two columns": lambda: pd.DataFrame(ROWS).set_index(["client", "label"]),
    "by time": lambda: pd.DataFrame(ROWS).set_index(pd.date_range("2026-01-01", periods=3)),
    "by category": lambda: pd.DataFrame(ROWS).astype({"label": "category"}).set_index("label"),
    "a series": lambda: pd.DataFrame(ROWS).set_index(["client", "label"])["rows"],
}


@pytest.mark.parametrize("name", FRAMES)
def test_reading_a_table_changes_nothing(name: str) -> None:
    """An index keeps what it has looked up; a file of a user's may read a global table in every round."""
    table = FRAMES[name]()
    before = fingerprint(table)
    assert fingerprint(table) == before
    table.index.is_unique, table.sort_index(), table.loc[table.index[0]], table.groupby(level=0).sum(), table.to_numpy()
    assert table.index.get_loc(table.index[1]) is not None
    assert fingerprint(table) == before == fingerprint(FRAMES[name]())


@pytest.mark.parametrize("name", FRAMES)
def test_writing_into_a_table_is_seen(name: str) -> None:
    table = FRAMES[name]()
    before = fingerprint(table)
    table.iloc[1] = table.iloc[0].copy() if isinstance(table, pd.DataFrame) else 7
    assert fingerprint(table) != before
    table = FRAMES[name]()
    table.index = table.index[::-1]
    assert fingerprint(table) != before
