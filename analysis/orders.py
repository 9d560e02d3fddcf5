"""Whether the order of algorithms in one scenario holds in another, and that by defaults when tuned, by two tables.

    python -m fedtune.analysis.orders runs/few/table.csv runs/many/table.csv

Global algorithms (one model for all clients) and personal ones lie far apart in most tables, whatever the scenario.
So τ is also reported within each kind, and across the two.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from fedtune.analysis.twins import of_their_own
from fedtune.core.errors import UserError
from fedtune.core.statistics import number
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenarios import find
from fedtune.studies.comparison import results as comparison_results
from fedtune.studies.comparison import text as comparison_text
from fedtune.user_code.command import Parser, guarded

FEWEST = 3  # algorithms that have an order worth the name

# what is ordered -> the column of a comparison's table
COLUMNS = {
    "by defaults, own classes": "default",
    "tuned, own classes": "tuned",
    "tuned, all classes": "all",
    "what tuning gains": "gain",
}

ABOUT = """By `python -m fedtune.analysis.orders` on the two tables.  Kendall's τ is 1 for one order, 0 for unrelated
ones and −1 for opposite ones; p is the chance of a τ as far from 0 between unrelated ones.  Across the kinds τ is that
of the pairs of one of each, and has no p.  An algorithm counts where both tables have the figure, and the control, or
FedBN where it is FedAvg, in none."""


def kinds(names: list[str]) -> dict[str, str]:
    """Of each algorithm whether one model serves all clients, which then can be scored as the global one, or not."""
    scenario = dataclasses.replace(find("gfpl-fmnist-few"), evaluation="global")

    def kind(name: str) -> str:
        try:
            Experiment(algorithm=name, scenario=scenario).check()
        except UserError:
            return "own models"
        return "one model"

    return {name: kind(name) for name in names}


def orders(one: pd.DataFrame, other: pd.DataFrame, names: tuple[str, str]) -> dict[str, pd.DataFrame]:
    """Two figures an algorithm, side by side, by what they are: of both tables, and by default and tuned of each."""
    tables = [t.set_index("algorithm") for t in (one, other)]
    pairs = {
        f"{what}: {names[0]}, {names[1]}": [t[column] for t in tables]
        for what, column in COLUMNS.items()
        if all(column in t for t in tables)
    }
    pairs |= {f"{name}: by defaults, tuned": [t["default"], t["tuned"]] for name, t in zip(names, tables, strict=True)}
    return {what: pd.concat(pair, axis=1, join="inner").dropna() for what, pair in pairs.items()}


def taus(pairs: Mapping[str, pd.DataFrame], kind_of: Mapping[str, str]) -> pd.DataFrame:
    """Kendall's τ between the two orders of each pair and its p: of all algorithms, of each kind, across the kinds."""
    rows = []
    for what, both in pairs.items():
        for kind in ("all", *dict.fromkeys(kind_of.values())):
            part = both if kind == "all" else both[[kind_of[n] == kind for n in both.index]]
            if len(part) >= FEWEST:
                tau = stats.kendalltau(part.iloc[:, 0], part.iloc[:, 1])
                rows.append((what, kind, len(part), tau.statistic, tau.pvalue))
        if len({kind_of.get(n) for n in both.index}) == 2:
            rows.append((what, "across the kinds", len(both), _across(both, kind_of), math.nan))
    return pd.DataFrame(rows, columns=["order", "kind", "algorithms", "tau", "p"])


def _across(both: pd.DataFrame, kind_of: Mapping[str, str]) -> float:
    """Kendall's τ-b of the pairs whose algorithms are of different kinds."""
    pairs = [(a, b) for a, b in itertools.combinations(both.index, 2) if kind_of[a] != kind_of[b]]
    one, other = (np.sign([of[a] - of[b] for a, b in pairs]) for of in (both.iloc[:, 0], both.iloc[:, 1]))
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


def text(one: Path, other: Path) -> str:
    """The page; UserError for tables that have too few algorithms in common."""
    tables = [comparison_results.table(file) for file in (one, other)]
    # without the algorithms that are another one there
    tables = [t[t["algorithm"].isin(of_their_own(t.set_index("algorithm")[["default"]].T))] for t in tables]
    common = set(tables[0]["algorithm"]) & set(tables[1]["algorithm"])
    if len(common) < FEWEST:
        raise UserError(
            f"two tables need {FEWEST} algorithms in common, but {one} and {other} have {len(common)}; "
            "give tables of two comparisons of the same algorithms"
        )
    pairs = orders(tables[0], tables[1], (one.stem, other.stem))
    table = taus(pairs, kinds(sorted({name for both in pairs.values() for name in both.index})))
    shown = pd.DataFrame(
        {
            "order": table["order"],
            "kind": table["kind"],
            "algorithms": table["algorithms"],
            "Kendall's τ": [number(t, ".2f") for t in table["tau"]],
            "p": [number(p, ".2g") for p in table["p"]],
        }
    )
    return f"# Does the order of {one.stem} hold in {other.stem}?\n\n{ABOUT}\n\n{comparison_text.markdown(shown)}"


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(
        prog="python -m fedtune.analysis.orders", description="Whether an order holds in another comparison."
    )
    for name in ("one", "other"):
        parser.add_argument(name, type=Path, metavar="TABLE.csv", help="of a comparison")
    args: argparse.Namespace = parser.parse_args(argv)
    print(text(args.one, args.other), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
