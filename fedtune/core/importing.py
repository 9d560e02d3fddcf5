"""Importing many modules at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """The garbage collector rests meanwhile, and leaves out for good what there is by then.

    Modules make next to no garbage, but Python looks for it whenever there is a quarter more to look through: a fifth
    of the time that PyTorch and Ray Tune take.  For processes of our own: a user's may have garbage by then.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()
