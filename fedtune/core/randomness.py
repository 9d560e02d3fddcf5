"""Every random stream has an address: (seed, purpose, round, client).

A stream is derived from its address alone.  So a client's draws do not change if clients are regrouped, reordered,
stacked, paused or moved, and changing one hyperparameter never shifts another stream.  Numbers are drawn on the CPU
and then moved, so that they are the same on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedtune.core.process import turn


def number(*address: int | str) -> int:
    """The 63-bit seed of an address."""
    text = "/".join(map(str, address)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def stream(*address: int | str) -> torch.Generator:
    """The torch generator of an address."""
    return torch.Generator().manual_seed(number(*address))


def numpy_stream(*address: int | str) -> np.random.Generator:
    """The NumPy generator of an address."""
    return np.random.default_rng(number(*address))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the block with PyTorch's CPU generator seeded, for example to draw a layer's initial weights.

    Afterwards the generator has its former state.  No other thread's run draws from it meanwhile.  torch.manual_seed
    would also seed the GPUs, which nothing would restore, and takes a millisecond where there is none.
    """
    with turn(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
