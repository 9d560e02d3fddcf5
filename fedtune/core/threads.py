"""How many threads PyTorch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtune.core.process import turn


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch has one meanwhile, as in a trial: threads that share a small step wait for each other on busy cores.

    Nobody else's run is at work meanwhile, as the number is the process's.
    """
    with turn():
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
