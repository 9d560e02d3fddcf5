"""fedtune: hyperparameter search for heterogeneous federated learning, on Ray Tune.

Importing it loads none of the names below: each is loaded when it is first asked for, with PyTorch, Ray or neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtune.core.about import VERSION as __version__

if TYPE_CHECKING:
    from fedtune.api import Search, Study, objective, tunable
    from fedtune.core.hyper import hyper
    from fedtune.core.pure import pure
    from fedtune.core.trees import Ragged
    from fedtune.experiment.algorithm import Algorithm, Noise, Phase
    from fedtune.programs.report import report
    from fedtune.studies.checking import Check
    from fedtune.training import train
    from fedtune.tuning.space import when

__all__ = ["Algorithm", "Check", "Noise", "Phase", "Ragged", "Search", "Study", "__version__"]
__all__ += ["hyper", "objective", "pure", "report", "train", "tunable", "when"]

_MODULES = {
    "fedtune.api": ("Search", "Study", "objective", "tunable"),
    "fedtune.core.hyper": ("hyper",),
    "fedtune.core.pure": ("pure",),
    "fedtune.core.trees": ("Ragged",),
    "fedtune.studies.checking": ("Check",),
    "fedtune.experiment.algorithm": ("Algorithm", "Noise", "Phase"),
    "fedtune.programs.report": ("report",),
    "fedtune.training": ("train",),
    "fedtune.tuning.space": ("when",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
