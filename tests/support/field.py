"""A comparison of the field as its kept tables have it, and what a page says of it in words."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace

import pandas as pd
from scipy.stats import kendalltau

from fedtune.analysis.papers.twins import of_their_own
from fedtune.analysis.papers.worth import by_seed
from fedtune.core.statistics import interval
from fedtune.studies.comparison import budgets
from fedtune.studies.comparison.tables import LARGER, UNTOLD, WITHIN
from support.results_page import RESULTS, ROOT, contrasts, listed

OF = {
    "test_acc": "",
    "test_acc_all": ", all classes",
    "test_acc_foreign": ", foreign classes",
    "test_acc_rows": "",
}
EARLIER = pd.read_csv(RESULTS / "contrasts-of-one-search.csv")  # those of the two tables that this page had before


@cache
def called(algorithm: str) -> str:
    """An algorithm as its paper writes it: what its file begins with; and PFLlib's own code as such."""
    if name := algorithm.partition("pfllib-")[2]:
        return f"PFLlib's {called(name)}"
    doc = ast.get_docstring(ast.parse((ROOT / "trainables" / f"{algorithm}.py").read_text()))
    return str(doc).partition(":")[0]


def named(algorithms: Iterable[str]) -> str:
    """A, B and C; none if there is none."""
    return listed([*map(called, algorithms)] or ["none"])


@cache
def read(study: str) -> SimpleNamespace:
    """Its tables in points, by algorithm or by pair, without what is another algorithm here.

    `field` has those without a diverged run, the best first.
    """
    table = pd.read_csv(RESULTS / f"{study}.csv").set_index("algorithm")
    table = table.loc[of_their_own(table[["default"]].T)]
    counted = table.dropna(subset=["gain"])
    pairs, against = (pd.read_csv(RESULTS / f"{study}-{kind}.csv") for kind in ("pairs", "against"))
    pairs, against = (of[of["algorithm"].isin(table.index) & of["other"].isin(table.index)] for of in (pairs, against))
    return SimpleNamespace(
        table=table,
        field=100 * counted[["default", "tuned", "gain", "gain_half", "all", "foreign"]],
        pairs=_of_pairs(pairs),
        against=_of_pairs(against),
        runs=runs(study),
        budget=pd.read_csv(RESULTS / f"{study}-budget.csv"),
        contrasts=contrasts(study).droplevel("setting"),
        worth=(RESULTS / f"{study}-worth.md").read_text(),
    )


def runs(study: str) -> pd.DataFrame:
    """Its runs on fresh seeds."""
    return pd.read_parquet(RESULTS / f"{study}.parquet")


def _of_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """By pair, in points."""
    return frame.assign(difference=100 * frame["difference"], half=100 * frame["half"]).set_index(
        ["algorithm", "other"]
    )


def rankings(of: SimpleNamespace) -> tuple[list[float], float, float]:
    """Kendall's τ of each search between the rankings by defaults and tuned; then, the mean over pairs of searches,
    between two tuned rankings, and between two by defaults.
    """
    default, tuned = by_seed(of.runs)

    def tau(a: pd.Series, b: pd.Series) -> float:
        return float(kendalltau(a, b).statistic)

    agreed = [
        sum(tau(a, b) for (_, a), (_, b) in pairs) / len(pairs)
        for pairs in ([*itertools.combinations(figures.iterrows(), 2)] for figures in (tuned, default))
    ]
    return [tau(default.loc[n], tuned.loc[n]) for n in tuned.index], *agreed


def led(ranking: pd.Series, count: int) -> str:
    """A (80.1), B (79.9) and C (79.0): the best of a ranking."""
    return listed(f"{called(str(name))} ({value:.1f})" for name, value in ranking.nlargest(count).items())


def counts(pairs: pd.DataFrame) -> dict[str, int]:
    """How many pairs have each verdict, and of the larger ones how many are above and below the other."""
    larger = pairs["verdict"] == LARGER
    return {
        "above": int((larger & (pairs["difference"] > 0)).sum()),
        "below": int((larger & (pairs["difference"] < 0)).sum()),
        "within": int((pairs["verdict"] == WITHIN).sum()),
        "untold": int((pairs["verdict"] == UNTOLD).sum()),
        "diverged": int(pairs["difference"].isna().sum()),
    }


def difference(row: pd.Series) -> str:
    """+1.2 ± 0.3."""
    return interval(row["difference"], row["half"], "+.1f")


def significant(rows: pd.DataFrame) -> pd.Series:
    """Which contrasts differ from 0."""
    return rows["verdict"].isin(["above", "below"])


def cell(row: pd.Series) -> str:
    """A contrast's difference, in bold if it is significant."""
    mark = "**" * (row["verdict"] in ("above", "below"))
    return f"{mark}{difference(row)}{mark}"


def pair(key: tuple[str, str, str]) -> str:
    """A − B, and of which classes."""
    return f"{called(key[0])} − {called(key[1])}{OF[key[2]]}"


def larger(of: SimpleNamespace, baseline: str, sign: int) -> list[str]:
    """Those above (1) or below (−1) a baseline by more than the margin, the best first."""
    rows = of.against.xs(baseline, level="other")
    return [str(n) for n in rows.index if rows["verdict"][n] == LARGER and sign * rows["difference"][n] > 0]


def gains(of: SimpleNamespace, rows: pd.Series) -> str:
    """A (+9.1 ± 2.0), B (+8.0 ± 1.0) and C (+7.0 ± 1.5)."""
    gain, half = of.field["gain"], of.field["gain_half"]
    return listed(f"{called(str(n))} ({interval(gain[n], half[n], '+.1f')})" for n in rows.index)


def leaders(of: SimpleNamespace) -> str:
    """A (1 to 3) and B (after 4): who has the highest mean, after which trials."""
    each = budgets.leaders(of.budget)
    return listed(f"{called(n)} ({f'after {a}' if a == b else f'{a} to {b}'})" for a, b, n in each)


def importance(of: SimpleNamespace) -> dict[str, int]:
    """Percent of the importance that the two hyperparameters of training have, by kind of search."""
    by_kind = dict(re.findall(r"^\| (.+?) \| (\d+ % \| \d+ %)", of.worth, re.MULTILINE))
    return {kind: sum(map(int, re.findall(r"\d+", found))) for kind, found in by_kind.items()}


def simulated(question: str, column: int, having: str = "") -> list[float]:
    """A column, in percent, of the table after these words on the page of simulated searches, of rows so named."""
    page = (ROOT / "docs" / "background" / "simulate.md").read_text()
    lines = page.split(question)[1].partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines if having in line]
    return [float(row[1 + column].removesuffix(" %")) for row in rows]


ONE_SEARCH = simulated("called different from itself?", 0)  # and nine fresh seeds
THREE_SEARCHES = simulated("called different from itself?", 4)  # with the defaults of `compare`
AMONG_EQUALS = [  # p < 5 %, any after Holm, any larger than the margin: with the defaults of `compare`
    simulated("The columns are the share of pairs", column, "3 × 3, chosen") for column in range(3)
]
FOUND_ON_FEW = simulated("The columns are the share of pairs", 4, "few rows, 3 × 3, chosen")[0]  # of two points
