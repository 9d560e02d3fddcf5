"""Randomness has an address: (seed, purpose, round, client).

Every stream is made from its address alone, so regrouping, reordering, stacking, pausing or moving clients changes
nobody's draws, and changing one hyperparameter never shifts another stream.  Draws are made on the CPU and then
moved, so every device sees the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedtune.core.process import turn


def number(*address: int | str) -> int:
    """The 63-bit seed at an address."""
    text = "/".join(map(str, address)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def stream(*address: int | str) -> torch.Generator:
    """The torch stream at an address."""
    return torch.Generator().manual_seed(number(*address))


def numpy_stream(*address: int | str) -> np.random.Generator:
    """The numpy stream at an address."""
    return np.random.default_rng(number(*address))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within this, PyTorch's draws on the CPU, such as a layer's first weights, start from a seed.

    Afterwards its generator is as it was; meanwhile no other thread's run draws from it.  torch.manual_seed would also
    seed GPUs, which nothing would put back, and costs a millisecond where there is none.
    """
    with turn(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
