"""Figures of the page on what accuracy costs are those of the kept runs."""

from pathlib import Path

import numpy as np
import pandas as pd

from fedtune.core import statistics
from fedtune.studies.comparison import tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "analysis" / "results"
PAGE = (ROOT / "docs" / "background" / "price.md").read_text()


def told(head: str) -> dict[str, list[str]]:
    """The rows of the table that begins with these words."""
    lines = PAGE.split(head)[1].partition("\n\n")[0].splitlines()[2:]
    return {name: cells for name, *cells in ([c.strip() for c in line.strip("| ").split(" | ")] for line in lines)}


def test_means_and_intervals_are_those_of_the_kept_runs() -> None:
    rows, columns = told("| algorithm | ε = 1 |"), iter(range(5))
    for study in ("price-epsilon", "price-seconds"):
        kept, runs = pd.read_csv(RESULTS / f"{study}.csv"), pd.read_parquet(RESULTS / f"{study}.parquet")
        assert rows.keys() == set(kept["algorithm"])
        for level, of_level in kept.groupby("level"):
            column = next(columns)
            at = runs[(runs["level"].astype(float) == level) & runs["chosen"]]
            for algorithm in rows.keys() - set(of_level["algorithm"]):
                assert rows[algorithm][column] == "–"
            for algorithm, of in of_level.groupby("algorithm"):
                chosen = at[at["algorithm"] == algorithm]
                mean = statistics.mean(tables.numbers(tables.with_units(chosen), "test_acc"))
                np.testing.assert_allclose([mean.mean, mean.half], of[["tuned", "half"]].iloc[0], rtol=1e-9)
                assert rows[algorithm][column] == f"{100 * mean.mean:.1f} ± {100 * mean.half:.1f}"
    assert next(columns, None) is None


def test_bytes_and_what_codecs_cost_are_those_of_the_kept_tables() -> None:
    kept = pd.read_csv(RESULTS / "price-bytes.csv").set_index("algorithm")
    up, both = kept["up_mb"] / kept["up_mb"]["fedavg"], kept["comm_mb"] / kept["comm_mb"]["fedavg"]
    of = {name: f"fedavg[compress={name}]" for name in ("sign", "qsgd", "int8", "randk")}
    assert f"a {1 / up[of['sign']]:.0f}th (`sign`)" in PAGE and round(1 / up[of["qsgd"]]) == 8 and both.min() > 0.5
    words = f"`qsgd` needs {both[of['qsgd']]:.0%} of the dense run's bytes, and `sign`, which needs more rounds, "
    assert (words + f"{both[of['sign']]:.0%}.").replace("%", " %") in PAGE
    contrasts = pd.read_csv(RESULTS / "price-bytes-contrasts.csv").set_index("one")
    lost = contrasts.loc[of["randk"]]
    assert f"`randk` with error feedback loses {-lost['difference']:.1f} ± {lost['half']:.1f} points" in PAGE
    assert contrasts["verdict"].isin(["above", "below"]).sum() == 1 and kept["reached"].eq(3).sum() == len(kept) - 1
    assert all("no effect above 0.5 points" in str(contrasts.loc[of[n], "verdict"]) for n in ("int8", "qsgd"))


def test_what_privacy_costs_is_the_difference_of_kept_means() -> None:
    kept = pd.read_csv(RESULTS / "price-epsilon.csv").pivot(index="algorithm", columns="level", values="tuned")
    cost = -100 * kept.sub(kept[np.inf], axis=0).drop(["local", "scaffold"])
    for level, words in ((8.0, "costs {:.1f} to {:.1f} points"), (1.0, "costs {:.1f} to {:.1f}, and FedAdam {:.1f}")):
        others = cost[level].drop("fedadam")
        assert words.format(others.min(), others.max(), cost.loc["fedadam", level]) in PAGE
    assert f"and {cost.loc['fedadam', 8.0]:.1f} points where it has" in PAGE
    verdicts = pd.read_csv(RESULTS / "price-epsilon-contrasts.csv")["verdict"]
    assert f"[Of {(verdicts != 'not run').sum()} contrasts]" in PAGE
    assert f"over ε {verdicts.isin(['above', 'below']).sum()} are significant" in PAGE


def test_rounds_at_equal_device_time_are_those_of_the_kept_runs() -> None:
    runs = pd.read_parquet(RESULTS / "price-seconds.parquet")
    rounds, seconds = (runs[runs["chosen"]].groupby("algorithm")[n].mean() for n in ("rounds", "sim_seconds"))
    words = "has {:.1f} rounds where FedAvg-FT has {:.1f}"
    assert words.format(rounds["fedrep"], rounds["fedavgft"]) in PAGE and f"has {rounds['scaffold']:.1f}." in PAGE
    assert (
        f"has {rounds['local']:.0f} rounds" in PAGE and f"means are {seconds.min():.0f} to {seconds.max():.0f}" in PAGE
    )
