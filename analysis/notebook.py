"""Which run the notebooks of this folder show."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

from fedtune import analysis

EXAMPLE = Path(analysis.__file__).parent / "example"  # small runs that come along
RUN_VARIABLE = "FEDTUNE_RUN"  # names another run than the example


def chosen_run(example: str) -> Path:
    """The folder that $FEDTUNE_RUN names, from where the shell is, or else an example's.

    A notebook that nbconvert executes works in its own folder, so that a path from the shell's would lead astray.
    """
    given = os.environ.get(RUN_VARIABLE)
    return Path(os.environ.get("PWD", "."), given) if given else EXAMPLE / example


def begin() -> None:
    """Silence the warnings of tqdm and Ray about ipywidgets, which nothing here needs."""
    warnings.filterwarnings("ignore", message="IProgress not found")
    logging.getLogger("ray.widgets.util").setLevel(logging.ERROR)
