"""Recorded steps: PyTorch's operations of a step, run again without the Python around them.

`Calls` is the one door: it records what a call of some code does (`record`), runs it again (`replay`), and compares
both (`compare`); `forget` begins anew, and within `eager` nothing is recorded.  Nothing here knows of algorithms.
"""

from fedtune.tracing.calls import SWITCH, CacheEntry, Calls, Impure, eager, forget, known, metadata, names
from fedtune.tracing.purity import why_eager
from fedtune.tracing.tape import Replay

__all__ = [
    "SWITCH",
    "CacheEntry",
    "Calls",
    "Impure",
    "Replay",
    "eager",
    "forget",
    "known",
    "metadata",
    "names",
    "why_eager",
]
