"""Tables of which everything is known."""

import numpy as np

from fedtune.analysis.simulation.tabulated import Tabulated

ABOUT = {"algorithm": "fedavg", "scenario_name": "made up"}


def flat(worth: np.ndarray, seeds: int = 3, rounds: int = 4, spread: float = 0.0, draw: int = 1) -> Tabulated:
    """Configurations of one hyperparameter that reach the same in every round, but for a seed's luck."""
    luck = spread * np.random.default_rng(draw).normal(size=(len(worth), seeds, 1))
    values = np.broadcast_to(worth[:, None, None] + luck, (len(worth), seeds, rounds)).copy()
    return Tabulated(
        levels={"a": list(range(len(worth)))}, seeds=range(seeds), values=values, default=(0,), about=ABOUT
    )
