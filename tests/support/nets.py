"""The nets that people use, small, each with random rows of its kind."""

from pathlib import Path

import numpy as np

from fedtune.experiment.scenario import Scenario
from fedtune.nn import catalogue
from fedtune.tuning.options.options import ExperimentOptions

NETS = {
    "resnet8-bn(width=2)": (3, 8, 8),
    "resnet8-gn(width=2)": (3, 8, 8),
    "vit(width=4,depth=1,heads=2)": (1, 8, 8),
    "textcnn(width=2,embedding=3,vocabulary=11)": (6,),
    "lstm(width=3,embedding=3,vocabulary=11)": (6,),
    "cnn1d(width=2,kernel=3)": (2, 12),
}


def setting(name: str, folder: Path) -> Scenario:
    """Three clients with random rows of the kind that a net takes, in a file as users have them."""
    draw, shape, base = np.random.default_rng(3), NETS[name], catalogue.called(name)[0]
    tokens = base in catalogue.OF_TOKENS
    x = draw.integers(0, 30, (60, *shape)) if tokens else draw.standard_normal((60, *shape), dtype=np.float32)
    np.savez(folder / f"{base}.npz", x=x, y=np.arange(60) % 4, owner=np.arange(60) // 20)
    kind = {1: "tokens", 2: "series", 3: "images"}[len(shape)]
    fields = {"dataset": f"{folder}/{base}.npz", "model": name, "x_as": kind, "batch": 4}
    return ExperimentOptions(algo="fedavg", fields=fields).experiment().scenario
