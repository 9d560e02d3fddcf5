"""The number of threads that PyTorch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtune.core.process import turn


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one PyTorch thread, as a trial does.

    Threads that share a small step wait for each other on busy cores.  The number of threads belongs to the whole
    process, so no other run works meanwhile.
    """
    with turn():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
