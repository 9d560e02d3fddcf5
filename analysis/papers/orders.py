"""Whether the order of algorithms in one setting holds in another, by the tables of two comparisons.

    python -m analysis.orders analysis/results/field-few.csv analysis/results/field-dir0.3.csv

Kendall's τ is 1 for one order, 0 for unrelated ones and −1 for opposite ones; p is that of unrelated ones.  An
algorithm counts where both tables have a figure of it: none of its runs diverged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from scipy import stats

from fedtune.core.command import Parser, guarded
from fedtune.core.errors import UserError
from fedtune.core.statistics import number
from fedtune.studies import comparison_files, comparison_text

FEWEST = 3  # algorithms that have an order worth the name

# what is ordered -> the column of a comparison's table
ORDERED = {
    "by defaults, own classes": "default", "tuned, own classes": "tuned", "tuned, all classes": "all",
    "what tuning gains": "gain",
}  # fmt: skip


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Kendall's τ between the orders in two tables and its p, a row for each thing that is ordered."""
    rows = []
    for name, column in ORDERED.items():
        if column in one and column in other:
            both = pd.concat([t.set_index("algorithm")[column] for t in (one, other)], axis=1, join="inner").dropna()
            if len(both) >= FEWEST:
                found = stats.kendalltau(both.iloc[:, 0], both.iloc[:, 1])
                rows.append((name, len(both), found.statistic, found.pvalue))
    return pd.DataFrame(rows, columns=["order", "algorithms", "tau", "p"])


def text(one: Path, other: Path) -> str:
    """The page; UserError for tables that have too few algorithms in common."""
    found = agreement(comparison_files.table(one), comparison_files.table(other))
    if found.empty:
        raise UserError(
            f"two tables need {FEWEST} algorithms in common of which no run diverged, but {one} and {other} have fewer"
        )
    shown = pd.DataFrame({
        "order": found["order"], "algorithms": found["algorithms"],
        "Kendall's τ": [number(t, ".2f") for t in found["tau"]], "p": [number(p, ".2g") for p in found["p"]],
    })  # fmt: skip
    return f"# Does the order of {one.stem} hold in {other.stem}?\n\n{comparison_text.markdown(shown)}"


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(prog="python -m analysis.orders", description="Whether one comparison's order holds in another.")
    for name in ("one", "other"):
        parser.add_argument(name, type=Path, metavar="TABLE.csv", help="of a comparison")
    args: argparse.Namespace = parser.parse_args(argv)
    print(text(args.one, args.other), end="")
    return 0
