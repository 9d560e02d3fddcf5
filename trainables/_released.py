"""Common parts of the presets `as_published`: the behaviour of released codes where it differs from their papers.

`fedtune list ALGORITHM` and a table in docs/reference/algorithms.md show what a preset changes.
"""

from __future__ import annotations

from typing import Any

# How FedGen's, FedPA's and FedGenP's codes train clients, whatever the algorithm: SGD whose rate cools, and each client
# keeps its own running statistics.  Differs: there the rate follows a client's last round, here the round itself.
CLIENTS: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.01,
    "lr_decay": 0.99,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch_norm": "personal",
}
# How they train generators: from uniform noise, on uniform labels among those that somebody has, with a penalty.
GENERATOR: dict[str, Any] = {
    "noise_law": "uniform",
    "label_law": "present",
    "gen_weight_decay": 1e-2,
    "gen_lr_decay": 0.98,
}
