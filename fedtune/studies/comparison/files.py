"""A comparison's tables as its folder has them, checked where they are read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedtune.core.errors import UserError
from fedtune.core.terminal import command_line
from fedtune.runs import reading
from fedtune.runs.files import COMPARISON, RunFiles
from fedtune.studies.comparison import budgets
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
    kinds = {name: reading.TEXT if name in TEXTS else reading.NUMBER for name in (*PAIRS, "freedom", "verdict")}
    return reading.text_table(file, PAIRS, kinds)


def by_budget(run: str | Path) -> pd.DataFrame:
    """What a comparison's searches had found after 1, 2, 3, … trials: the mean over searches, interval, rank, rounds.

    It is the score that searches select by, as a rule of validation rows.  UserError for a folder without such a table.

    >>> from fedtune.analysis import frames
    >>> found = frames.by_budget("runs/COMPARISON")
    >>> list(found)
    ['algorithm', 'trials', 'score', 'half', 'rank', 'rounds', 'searches', 'metric']
    """
    files = RunFiles(run, COMPARISON)
    _ = files.record
    if not files.budget_file.exists():
        raise UserError(
            f"a comparison has its table by budget when it has ended, but {files.budget_file} is missing; "
            f"{command_line('resume', files.path)} makes it"
        )
    kinds = {name: reading.TEXT if name in TEXTS else reading.NUMBER for name in budgets.COLUMNS}
    return reading.text_table(files.budget_file, budgets.COLUMNS, kinds)
