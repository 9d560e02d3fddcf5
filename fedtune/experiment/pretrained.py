"""Pretrained bodies, saved by `fedtune run --save`, for scenarios that start from a common feature extractor.

A file has the name of the scenario that it was trained in and never changes: training it on another machine gives
slightly different bits.  It was made by

    fedtune run --algo fedavg --scenario NAME --save NAME.pt
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def names() -> tuple[str, ...]:
    """The names of the pretrained bodies."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.pt")))


def content(name: str) -> bytes:
    """The content of the file of this name, which `initial_weights` reads."""
    return (FOLDER / f"{name}.pt").read_bytes()
