"""Importing many modules at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """The garbage collector rests meanwhile, and afterwards never looks again at the objects that exist by then.

    Modules make next to no garbage, but Python looks for it whenever the number of objects has grown by a quarter: a
    fifth of the time that importing PyTorch and Ray Tune takes.  For a process of our own: a user's may have garbage.
    Where nothing new is imported nothing changes.
    """
    collecting, before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if collecting:
            gc.enable()
