"""Bodies that come trained: what `fedtune run --save` wrote, for scenarios that start from a common extractor.

A file here is named for the scenario that made it and never changes, so that a scenario's name stands for the same
numbers on every machine (training it anew gives other bits elsewhere).  Each is made again by

    fedtune run --algo fedavg --scenario NAME --save NAME.pt
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """The bodies there are."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.pt")))


def content(name: str) -> bytes:
    """The file of that name, which `weights` reads."""
    return (FOLDER / f"{name}.pt").read_bytes()
