"""GFPL's Figures 3, 4 and 6 in small: λ by itself, n with S_C, S_T with t1; what is not named stays at the default."""

from typing import Any

_LAM = [0.0, 0.5, 1.0, 2.0, 5.0, 10.0]
_PAIR: dict[str, list[Any]] = {"components": [1, 2, 4, 8], "threshold": [0.1, 1.0, 10.0, 100.0, 300.0]}
_TIMES: dict[str, list[Any]] = {"every": [1, 2, 5, 10], "start": [1, 5, 10, 15]}


def product(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A configuration for every pair of values."""
    (a, first), (b, second) = values.items()
    return [{a: x, b: y} for x in first for y in second]


SPACE = [{"lam": value} for value in _LAM] + product(_PAIR) + product(_TIMES)
