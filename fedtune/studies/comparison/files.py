"""A comparison's tables as its folder has them, checked where they are read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedtune.runs import reading
from fedtune.studies.comparison.tables import COLUMNS, FAILED_COLUMNS, OBJECTIVE_COLUMNS

TEXTS = ("algorithm", "other", "published", "configuration", "metric", "lost", "verdict")
PAIRS = ("algorithm", "other", "difference", "half", "p", "p_holm")


def table(file: Path) -> pd.DataFrame:
    """A table.csv; UserError that names it if it is damaged."""
    columns = (*COLUMNS, *OBJECTIVE_COLUMNS, *FAILED_COLUMNS)
    kinds = {name: reading.TEXT if name in TEXTS else reading.NUMBER for name in columns}
    return reading.text_table(file, COLUMNS, kinds)


def pairs(file: Path) -> pd.DataFrame:
    """A pairs.csv; UserError that names it if it is damaged."""
    kinds = {name: reading.TEXT if name in TEXTS else reading.NUMBER for name in (*PAIRS, "verdict")}
    return reading.text_table(file, PAIRS, kinds)
