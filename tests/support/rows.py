"""Tables of parameters of which README's command runs a part: one row for each way that differs."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(rows: Iterable[Any], number: int) -> list[Any]:
    """All rows; those after the first ones are among the long tests."""
    values = [row if isinstance(row, tuple) else (row,) for row in rows]
    return [pytest.param(*of, marks=[pytest.mark.long] * (i >= number)) for i, of in enumerate(values)]
