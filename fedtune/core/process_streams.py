"""The random streams that belong to the process, which nothing may draw from whose numbers must come again."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch


class Streams(NamedTuple):
    """The states of the random streams that belong to the process."""

    torch: Any
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Streams:
        """Their current states."""
        kind, keys, *rest = np.random.get_state()
        return cls(torch.get_rng_state().numpy().tobytes(), (np.asarray(keys).tobytes(), *rest), random.getstate())

    def moved(self, later: Streams) -> list[str]:
        """The streams from which something was drawn between two states."""
        return [n for n in self._fields if getattr(self, n) != getattr(later, n)]
