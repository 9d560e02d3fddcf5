"""Recorded steps: the PyTorch operations of a training step, run again without the Python code around them.

`Calls` is the only interface: it records a call of some code (`record`), runs the recording (`replay`), and compares
the two (`compare`).  `forget` drops all recordings, and within `eager` nothing is recorded.  This package knows nothing
of algorithms.
"""

from fedtune.tracing.calls import CacheEntry, Calls, Impure, eager, forget, metadata, names, recordings_of
from fedtune.tracing.purity import why_eager
from fedtune.tracing.tape import Replay

__all__ = [
    "CacheEntry",
    "Calls",
    "Impure",
    "Replay",
    "eager",
    "forget",
    "recordings_of",
    "metadata",
    "names",
    "why_eager",
]
