"""What is known of a net before anything is trained."""

from __future__ import annotations

from typing import NamedTuple

import torch


class NetStructure(NamedTuple):
    """The structure of a net, without its values."""

    parts: tuple[str, ...]
    shapes: dict[str, torch.Size]  # of every tensor, by its full name
    buffers: frozenset[str]  # names of BatchNorm's running statistics
    head_was: str | None  # the head's name in a user's own module
    stays: frozenset[str]  # tensors of shared parts that stay with each client
    unsent: frozenset[str]  # those of `stays` that the client does not send either
    adapts: bool  # whether a client trains before it is scored
