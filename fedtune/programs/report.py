"""Report a round from a program that fedtune runs.

Nothing but Python's own modules is imported here, because users' programs import it.
"""

from __future__ import annotations

import os

ROWS = "FEDTUNE_ROWS"  # the environment variable with the file that rows are appended to


def report(*, round: int | None = None, **metrics: float) -> None:
    """Report the metrics of a round; outside a trial this does nothing.

        report(round=3, val_acc=0.91)

    Without `round` the rounds are counted.  Values are numbers, also of NumPy or PyTorch.

    >>> from fedtune import report
    >>> for i in range(3):
    ...     report(round=i + 1, val_acc=0.5 + 0.1 * i)
    """
    file = os.environ.get(ROWS)
    if not file:
        return
    import json

    if missing := [name for name, value in metrics.items() if value is None]:
        raise TypeError(f"{missing[0]} must be a number, but is None")
    row = metrics if round is None else {"round": round, **metrics}
    line = json.dumps(row, default=lambda scalar: scalar.item())
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # with the mark, because the file may be the output itself; at once, so that two processes' lines do not mix
        os.write(descriptor, f"fedtune {line}\n".encode())
    finally:
        os.close(descriptor)
