"""Report a round from a program that fedtune runs.

Nothing but Python's own modules is imported here, because users' programs import it.
"""

from __future__ import annotations

import os

ROWS = "FEDTUNE_ROWS"  # the environment variable with the file that rows are appended to


def report(*, round: int | None = None, **metrics: float) -> None:
    """Report the metrics of a round; outside a trial this does nothing.

        report(round=3, val_acc=0.91)

    Without `round` the rounds are counted.  Values are numbers, also of NumPy or PyTorch; TypeError for others.

    >>> from fedtune import report
    >>> for i in range(3):
    ...     report(round=i + 1, val_acc=0.5 + 0.1 * i)
    """
    file = os.environ.get(ROWS)
    if not file:
        return
    import json

    if not metrics:
        raise TypeError("report needs a metric, for example report(round=3, val_acc=0.91)")
    row: dict[str, float] = {} if round is None else {"round": _whole(round)}
    row |= {name: _number(name, value) for name, value in metrics.items()}
    line = b"fedtune %b\n" % json.dumps(row).encode()  # with the mark, because the file may be the output itself
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)  # at once, so that two processes' lines do not mix
    finally:
        os.close(descriptor)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"report needs a whole number as round, but got {value!r}")
    return value.__index__()


def _number(name: str, value: object) -> float:
    if hasattr(value, "item"):  # a scalar of NumPy's or PyTorch's
        try:
            value = value.item()
        except Exception:
            raise TypeError(
                f"report needs numbers, but {name} has several values; give its mean, for example"
            ) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"report needs numbers, but {name} is {value!r}")
    return value
