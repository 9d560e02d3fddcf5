"""What several figures share: names in words, which run a round is of, legends and quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedtune.core import metrics
from fedtune.core.metrics import OBJECTIVES, is_share
from fedtune.runs.tables import CONFIG

KEYS = ("run", "algorithm", "configuration", "trial", "seed")  # columns that tell runs of a configuration apart
UNITS = {"rounds": ("rounds trained", "round"), "mb": ("communication [MB]", "MB"), "seconds": ("time [s]", "s")}
UNITS |= {"sim_seconds": ("device time [s]", "device seconds")}


def in_words(column: str) -> str:
    """A column's name in words, for an axis."""
    return metrics.in_words(column.removeprefix("last_").removeprefix("best_")).removeprefix(CONFIG)


def form(column: str) -> str:
    """How Plotly writes a column's values beside marks: shares of rows in percent."""
    return ".2%" if is_share(column.removeprefix("last_").removeprefix("best_")) else ".4f"


def ticks(column: str) -> str:
    """How Plotly writes them along an axis."""
    return ".3~%" if form(column) == ".2%" else ""


def title_of(column: str) -> str:
    """A column in words that begin a title."""
    return in_words(column)[:1].upper() + in_words(column)[1:]


def better(metric: str) -> str:
    """Whether more or less of a metric is better, "max" or "min"; a test metric is like its validation metric."""
    like = OBJECTIVES.get(metric.replace("test_", "val_", 1))
    return like or ("min" if metric.endswith("loss") else "max")


def short(value: Any) -> str:
    """A value as text, in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def text_column(frame: pd.DataFrame, name: str) -> pd.Series:
    """A column as text; empty texts where the frame has none of that name."""
    return frame[name].astype(str) if name in frame else pd.Series("", index=frame.index)


def run_of(frame: pd.DataFrame) -> pd.Series:
    """Names that tell rounds of one run of one configuration from those of another."""
    keys = [k for k in KEYS if k in frame]
    if keys == ["trial"]:
        return frame["trial"].astype(str)
    names = pd.Series("", index=frame.index)
    for key in keys:
        names = names + "/" + frame[key].astype(str)
    return names


def hover_texts(frame: pd.DataFrame) -> list[str]:
    """The hover text of each row: trial, seed and round."""
    columns = [c for c in ("trial", "seed", "round") if c in frame]
    return [
        "\n" + ", ".join(f"{c} {v}" for c, v in zip(columns, row, strict=True))
        for row in frame[columns].astype(str).itertuples(index=False)
    ]


def legend_lines(names: Sequence[str] | dict[str, str]) -> int:
    """The number of lines that these names fill in a legend."""
    return max(1, math.ceil(sum(len(str(n)) + 9 for n in names) / 90))


def quantiles(values: pd.Series, parts: int) -> pd.Series:
    """Each value's interval of about equal counts, in words: from its least value to its largest; ordered."""
    part = pd.qcut(values, parts, labels=False, duplicates="drop")
    ends = values.groupby(part).agg(["min", "max"])
    words = {i: f"{low:.3g}" if low == high else f"{low:.3g}–{high:.3g}" for i, low, high in ends.itertuples()}
    named = pd.Categorical(part.map(words), list(dict.fromkeys(words.values())), ordered=True)
    return pd.Series(named, index=values.index)


def with_cost(rounds: pd.DataFrame, against: str, metric: str = "val_acc") -> pd.DataFrame:
    """Rounds with the metric, and what each of them cost, with those before it that have none."""
    if not len(rounds) or metric not in rounds:
        return rounds.iloc[:0]
    rounds = rounds.reset_index(drop=True)
    seconds = rounds["seconds"] + rounds["eval_seconds"]
    columns = {"rounds": "round", "mb": "comm_mb"}
    so_far = seconds.groupby(run_of(rounds)).cumsum() if against == "seconds" else rounds[columns.get(against, against)]
    scored = rounds.assign(_cost=so_far).dropna(subset=[metric])
    return scored.assign(_cost=scored["_cost"].groupby(run_of(scored)).diff().fillna(scored["_cost"]))
