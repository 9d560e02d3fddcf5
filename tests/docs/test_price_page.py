"""Figures of the page on what accuracy costs are those of the kept runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedtune.core import statistics
from fedtune.studies.comparison import tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "analysis" / "results"
PAGE = (ROOT / "docs" / "background" / "price.md").read_text()


def told(head: str) -> dict[str, list[str]]:
    """The rows of the table that begins with these words."""
    lines = PAGE.split(head)[1].partition("\n\n")[0].splitlines()[2:]
    return {name: cells for name, *cells in ([c.strip() for c in line.strip("| ").split(" | ")] for line in lines)}


@pytest.mark.parametrize(
    "study, head", [("price-epsilon", "| algorithm | ε = 1 |"), ("price-seconds", "| algorithm | 60 s |")]
)
def test_means_and_intervals_are_those_of_the_kept_runs(study: str, head: str) -> None:
    kept, runs = pd.read_csv(RESULTS / f"{study}.csv"), pd.read_parquet(RESULTS / f"{study}.parquet")
    rows, levels = told(head), sorted(kept["level"].unique())
    assert rows.keys() == set(kept["algorithm"])
    for (level, algorithm), of in kept.groupby(["level", "algorithm"]):
        chosen = runs[(runs["level"].astype(float) == level) & (runs["algorithm"] == algorithm) & runs["chosen"]]
        mean = statistics.mean(tables.numbers(tables.with_units(chosen), "test_acc"))
        np.testing.assert_allclose([mean.mean, mean.half], of[["tuned", "half"]].iloc[0], rtol=1e-9)
        assert rows[algorithm][levels.index(level)] == f"{100 * mean.mean:.1f} ± {100 * mean.half:.1f}"


def test_bytes_are_those_of_the_kept_table() -> None:
    kept, rows = pd.read_csv(RESULTS / "price-bytes.csv"), told("| codec |")
    assert {name.strip("`") for name in rows} == set(kept["compress"])
    for row in kept.itertuples():
        assert rows[f"`{row.compress}`"][:3] == [f"{row.lr:g}", f"{100 * row.val_acc:.1f}", f"{row.round:.0f}"]
        assert rows[f"`{row.compress}`"][3:] == [f"{row.up_mb:.3g}", f"{row.comm_mb:.3g}"]


def test_what_privacy_costs_is_the_difference_of_kept_means() -> None:
    kept = pd.read_csv(RESULTS / "price-epsilon.csv").pivot(index="algorithm", columns="level", values="tuned")
    cost = -100 * kept.sub(kept[np.inf], axis=0).drop(["local", "scaffold"])
    for level, words in ((8.0, "costs {:.1f} to {:.1f} points"), (1.0, "costs {:.1f} to {:.1f}, and FedAdam {:.1f}")):
        others = cost[level].drop("fedadam")
        assert words.format(others.min(), others.max(), cost.loc["fedadam", level]) in PAGE
    assert f"and {cost.loc['fedadam', 8.0]:.1f} points where it has" in PAGE
    verdicts = pd.read_csv(RESULTS / "price-epsilon-contrasts.csv")["verdict"]
    assert f"Of {(verdicts != 'not run').sum()} contrasts" in PAGE
    assert f"{verdicts.isin(['above', 'below']).sum()} are significant" in PAGE


def test_rounds_at_equal_device_time_are_those_of_the_kept_runs() -> None:
    runs = pd.read_parquet(RESULTS / "price-seconds.parquet")
    rounds, seconds = (runs[runs["chosen"]].groupby("algorithm")[n].mean() for n in ("rounds", "sim_seconds"))
    words = "has {:.1f} rounds where FedAvg-FT has {:.1f}"
    assert words.format(rounds["fedrep"], rounds["fedavgft"]) in PAGE and f"has {rounds['scaffold']:.1f}." in PAGE
    assert (
        f"has {rounds['local']:.0f} rounds" in PAGE and f"means are {seconds.min():.0f} to {seconds.max():.0f}" in PAGE
    )
