"""What tuning is worth: gains, orders and the hyperparameters behind them, of one comparison.

    python -m fedtune.analysis.worth runs/tuned-few [--write analysis/results]

Gains are tuned − default test accuracy, paired by fresh seed, or by search where each algorithm has several, with 95 %
intervals by Student's t.  Kendall's τ (1 for one order, 0 for unrelated ones) is between the order of the algorithms by
default and the order when tuned.  Its interval holds the middle 95 % of bootstrap samples of the seeds; of several
searches, which are too few for that, the τ of each is told.  Shares of variance are by fANOVA over the trials of all
searches of an algorithm.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from fedtune.analysis import plots
from fedtune.analysis.twins import of_their_own
from fedtune.core import statistics
from fedtune.core.errors import UserError
from fedtune.core.statistics import interval
from fedtune.core.terminal import several
from fedtune.experiment import registry
from fedtune.runs.files import COMPARISON, RunFiles, search_of, searches_of
from fedtune.runs.provenance import provenance_line
from fedtune.runs.reading import commits_of
from fedtune.runs.tables import BORROWED, DEFAULT
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.user_code.command import Parser, guarded

if TYPE_CHECKING:
    import optuna

SAMPLES = 2_000  # bootstrap samples
RATES = ("lr", "momentum", "local_epochs")  # hyperparameters of local training, which every algorithm has


class Interval(NamedTuple):
    """A figure with a 95 % interval that need not lie evenly around it."""

    value: float
    low: float
    high: float


def by_seed(
    evaluations: pd.DataFrame, metric: str = "test_acc", untuned: str = DEFAULT
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Accuracy in percent by default and when tuned: a row per seed, a column per algorithm without diverged runs.

    Where each algorithm has several searches, a row per search.  untuned: BORROWED in place of the default.

    Without an algorithm that is another one here (`twins`).
    """

    def table(runs: pd.DataFrame) -> pd.DataFrame:
        of = {name: comparison_tables.numbers(rows, metric) for name, rows in runs.groupby("algorithm")}
        return 100 * pd.DataFrame(of)

    evaluations = comparison_tables.with_units(evaluations)
    default = table(evaluations[evaluations["configuration"] == untuned])
    tuned = table(evaluations[evaluations["chosen"]])
    sound = (default.notna() & tuned.notna()).all()
    counted = [name for name in of_their_own(default) if sound[name]]
    return default[counted], tuned[counted]


def gains(default: pd.DataFrame, tuned: pd.DataFrame) -> pd.DataFrame:
    """The gain of each algorithm from tuning in points, ± half a 95 % interval, largest first; and the mean of all."""
    each = {name: statistics.mean(tuned[name] - default[name]) for name in default}
    rows = sorted(((n, *m) for n, m in each.items()), key=lambda row: -row[1])
    rows.append(("mean of all", *statistics.mean((tuned - default).mean(axis=1))))
    return pd.DataFrame(rows, columns=["algorithm", "gain", "half"])


def agreement(default: pd.DataFrame, tuned: pd.DataFrame) -> Interval:
    """Kendall's τ between the orders of the algorithms by default and when tuned."""

    order, seeds = np.random.default_rng(0), len(default)
    sampled = [_tau(default, tuned, order.integers(seeds, size=seeds)) for _ in range(SAMPLES)]
    low, high = np.nanquantile(sampled, [0.025, 0.975])
    return Interval(_tau(default, tuned, np.arange(seeds)), float(low), float(high))


def _tau(default: pd.DataFrame, tuned: pd.DataFrame, rows: np.ndarray) -> float:
    return float(stats.kendalltau(default.to_numpy()[rows].mean(0), tuned.to_numpy()[rows].mean(0)).statistic)


def agreed(default: pd.DataFrame, tuned: pd.DataFrame, searches: int) -> str:
    """Kendall's τ in words, with its interval over seeds, or with that of each search."""
    if searches == 1:
        tau = agreement(default, tuned)
        return f"τ = {tau.value:.2f} (95 % interval {tau.low:.2f} to {tau.high:.2f})"
    every, each = np.arange(searches), [f"{_tau(default, tuned, np.array([k])):.2f}" for k in range(searches)]
    return f"τ = {_tau(default, tuned, every):.2f} (in single searches {', '.join(each)})"


def spread(values: pd.DataFrame) -> tuple[float, float]:
    """How many points the best algorithm lies above the median one, and above the worst."""
    means = values.mean()
    return float(means.max() - means.median()), float(means.max() - means.min())


def families(names: list[str]) -> dict[str, str]:
    """The family of each algorithm by what it sends: the whole model, a part of it, or something else."""
    by_name = {}
    for name in names:
        shared = set(registry.find(name)().shared)
        by_name[name] = "the model" if shared >= {"body", "head"} else "a part of it" if shared else "something else"
    return by_name


def studied(folder: Path, name: str, searches: int) -> optuna.Study | None:
    """The trials of all of an algorithm's searches in a comparison; None if none has an Optuna study."""
    last = {
        search_of(search): search for search in searches_of(folder, name, searches)
    }  # a widened one has all its trials
    studies = [s for search in last.values() if (s := plots.study(search)) is not None]
    return plots.pooled(studies) if studies else None


def shares(folder: Path, names: list[str], searches: int = 1) -> pd.DataFrame:
    """By family: the mean share of the variance between trials that local training explains, and what comes first."""
    family_of, rows = families(names), []
    for name in names:
        if importance := plots.mattered(studied(folder, name, searches)):
            of, local = importance.shares, {r: importance.shares.get(r, 0.0) for r in RATES}
            others = 1 - sum(local.values())
            more = not set(of) <= set(RATES)
            rows.append({"family": family_of[name], **local, "others": others, "first": next(iter(of)), "more": more})
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    means = table.groupby("family", sort=True)[[*RATES, "others"]].mean()
    firsts = table.groupby("family")["first"].agg(lambda f: ", ".join(f"{n} {c}×" for n, c in f.value_counts().items()))
    by_family = means.assign(algorithms=table["family"].value_counts(), first=firsts).reset_index()
    every = [
        some[[*RATES, "others"]].mean().to_dict() | {"family": whose, "algorithms": len(some), "first": ""}
        for whose, some in (("all", table), ("all that search more", table[table["more"]]))
        if len(some)
    ]
    return pd.concat([by_family, pd.DataFrame(every)], ignore_index=True)


def text(folder: Path) -> str:
    """The page; UserError for a folder that is no finished comparison's."""
    files = RunFiles(folder, COMPARISON)
    if not files.is_comparison or not files.evaluations_file.exists():
        raise UserError(
            f"the folder of a finished comparison is needed, but {folder} is not one; fedtune compare makes one"
        )
    evaluations = pd.read_parquet(files.evaluations_file)
    default, tuned = by_seed(evaluations)
    if len(default.columns) < 2:
        raise UserError(f"at least two algorithms without diverged runs are needed, but {folder} has fewer")
    record = files.record
    gained = gains(default, tuned)
    (by_default, most_default), (when_tuned, most_tuned) = spread(default), spread(tuned)
    shown = pd.DataFrame(
        {
            "algorithm": gained["algorithm"],
            "default %": [f"{default[n].mean():.2f}" if n in default else "" for n in gained["algorithm"]],
            "tuned %": [f"{tuned[n].mean():.2f}" if n in tuned else "" for n in gained["algorithm"]],
            "gain": [interval(r.gain, r.half, "+z.2f") for r in gained.itertuples()],
        }
    )
    if record.get("borrowers"):
        both = (of[[n for n in of if n in default]] for of in by_seed(evaluations, untuned=BORROWED))
        beyond = {r.algorithm: interval(r.gain, r.half, "+z.2f") for r in gains(*both).itertuples()}
        shown[f"gain over {record['lender']}'s values"] = shown["algorithm"].map(beyond).fillna("")
    searches = int(record.get("searches", 1))
    of = shares(folder, list(default), searches)
    each = "fresh seeds" if searches == 1 else f"searches, each judged on {several(record['seeds'], 'fresh seed')}"
    percent = of.assign(**{c: [f"{100 * v:.0f} %" for v in of[c]] for c in (*RATES, "others")}) if len(of) else of
    lines = [
        f"# What tuning is worth: {folder.absolute().name}",
        "",
        provenance_line(record, commits_of(record)),
        "",
        f"{len(default.columns)} algorithms, {len(default)} {each}, test accuracy on each client's own rows "
        "where the setting's rule is personal.",
        "",
        comparison_text.markdown(shown),
        "",
        f"The orders by defaults and when tuned agree by Kendall's {agreed(default, tuned, searches)}.",
        "",
        f"The best lies {by_default:.2f} points above the median algorithm by defaults and {when_tuned:.2f} when "
        f"tuned; above the worst {most_default:.2f} and {most_tuned:.2f}.",
        "",
        "Importance of single hyperparameters (fANOVA, shares of 1), mean over algorithms, by what is sent:",
        "",
        comparison_text.markdown(percent) if len(of) else "no algorithm has enough trials",
    ]
    return "\n".join(lines) + "\n"


@guarded
def main(argv: list[str] | None = None) -> int:
    """The command; see the module."""
    parser = Parser(prog="python -m fedtune.analysis.worth", description="What tuning is worth, by a comparison.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a finished comparison")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write NAME-worth.md there, too")
    args: argparse.Namespace = parser.parse_args(argv)
    page = text(args.folder)
    print(page)
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        (args.write / f"{args.folder.absolute().name}-worth.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
