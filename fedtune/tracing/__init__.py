"""Recorded steps: the PyTorch operations of a training step, run again without the Python code around them.

`Calls` records a call of some code (`record`), runs the recording (`replay`), and compares the two (`compare`).
"""

from fedtune.tracing.calls import CacheEntry, Calls, Impure, eager, forget, metadata, names, recordings_of
from fedtune.tracing.purity import why_eager

__all__ = ["CacheEntry", "Calls", "Impure", "eager", "forget"]
__all__ += ["metadata", "names", "recordings_of", "why_eager"]
