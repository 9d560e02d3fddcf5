"""Which algorithms of a comparison are another one there, and so count with it and not beside it."""

from __future__ import annotations

import pandas as pd

TWINS = {"fedbn": "fedavg"}  # on a net without BatchNorm one is the other
CONTROL = "-again"  # what the name of a comparison's control ends with, behind that of the algorithm that it is


def of_their_own(defaults: pd.DataFrame) -> list[str]:
    """The names without those of a twin, or of a control: whose default figures are the other one's, every one.

    defaults: figures of the default configurations, a column per algorithm.
    """

    def twin(name: str) -> str:
        return TWINS.get(name, name.removesuffix(CONTROL))

    return [
        name
        for name in map(str, defaults)
        if (other := twin(name)) == name
        or other not in defaults
        or not defaults[name].equals(defaults[other].rename(name))
    ]
