"""Randomness has an address: (seed, purpose, round, client).

Every stream is made from its address alone, so regrouping, reordering, stacking, pausing or moving clients changes
nobody's draws, and changing one hyperparameter never shifts another stream.  Draws are made on the CPU and then
moved, so every device sees the same ones.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


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
