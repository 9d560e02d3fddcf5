"""Contrasts on made-up figures whose answers are known, and what the file may ask."""

import itertools
import math
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedtune.analysis import contrasts
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.analysis.reproduction.plan import rows_of
from fedtune.analysis.verdicts import NOTHING, UNTOLD
from fedtune.core import statistics
from fedtune.core.about import FORMAT
from fedtune.core.metrics import METRICS
from fedtune.experiment import registry
from fedtune.runs.files import COMPARISON, RunFiles, write_json
from fedtune.user_code.user_files import split

BASE = np.array([70.0, 72.0, 74.0, 71.0, 73.0])
NOISE = np.array([0.1, -0.1, 0.0, 0.05, -0.05])
FOUND = {
    "base": BASE,
    "more": BASE + 2 + NOISE,
    "less": BASE - 2 + NOISE,
    "same": BASE + NOISE,
    "wide": BASE + 40 * NOISE,
    "lost": np.array([70.0, math.nan, 74.0, 71.0, 73.0]),
}


def asked(*ones: str, metric: str = "test_acc") -> list[dict[str, str]]:
    return [{"one": one, "other": "base", "metric": metric, "expected": "+", "why": ""} for one in ones]


def test_a_contrast_is_paired_by_seed_and_corrected_over_the_study() -> None:
    ones = ("more", "less", "same", "wide", "lost", "absent")
    table = contrasts.judged(asked(*ones), {"test_acc": {"": FOUND}}).set_index("one")
    assert table["verdict"].to_dict() == {
        "more": contrasts.ABOVE,
        "less": contrasts.BELOW,
        "same": NOTHING,
        "wide": UNTOLD,
        "lost": contrasts.LOST,
        "absent": contrasts.NOT_RUN,
    }
    tested = stats.ttest_rel(FOUND["more"], BASE)
    interval = tested.confidence_interval()
    assert table.loc["more", "difference"] == pytest.approx((interval.low + interval.high) / 2)
    assert table.loc["more", "half"] == pytest.approx((interval.high - interval.low) / 2)
    assert table.loc["more", "p"] == pytest.approx(tested.pvalue)
    assert table.loc["more", "p_holm"] == pytest.approx(4 * tested.pvalue)  # of four that could be tested
    assert table["p_holm"].isna().sum() == 2


def test_contrasts_of_several_searches_have_variances_shrunk_to_all_pairs() -> None:
    found = {name: values[:3] for name, values in FOUND.items() if name != "lost"}
    table = contrasts.judged(asked("more", "wide"), {"test_acc": {"": found}}, searches=True).set_index("one")
    names = [frozenset(pair) for pair in itertools.combinations(found, 2)]
    spreads = statistics.moderated([found[a] - found[b] for a, b in itertools.combinations(found, 2)])
    want = statistics.paired_by(found["more"] - found["base"], spreads[names.index(frozenset(("more", "base")))])
    assert table.loc["more", ["difference", "half", "p"]].tolist() == pytest.approx([*want], rel=1e-12)
    plain = contrasts.judged(asked("more", "wide"), {"test_acc": {"": found}}).set_index("one")
    assert (
        table.loc["wide", "half"] < plain.loc["wide", "half"] and table.loc["more", "half"] > plain.loc["more", "half"]
    )


def test_every_setting_counts_in_the_correction() -> None:
    alone = contrasts.judged(asked("more"), {"test_acc": {"w̄ = 6": FOUND}})
    twice = contrasts.judged(asked("more"), {"test_acc": {"w̄ = 6": FOUND, "w̄ = 8": FOUND}})
    assert list(twice["setting"]) == ["w̄ = 6", "w̄ = 8"]
    assert list(twice["p_holm"]) == pytest.approx([2 * alone["p"][0]] * 2)
    none = contrasts.judged(asked("more", metric="test_acc_rows"), {"test_acc": {"": FOUND}})  # no run reports it
    assert list(none["verdict"]) == [contrasts.NOT_RUN] and math.isnan(none["p_holm"][0])


def test_a_comparisons_contrasts_are_of_the_tuned_configurations(tmp_path: Path) -> None:
    folder = tmp_path / "tuned-few"
    folder.mkdir()
    each = itertools.product((3, 1, 2), ("gfpl", "local"), ("default", "top 1"))
    runs = pd.DataFrame(each, columns=["seed", "algorithm", "configuration"])
    runs = runs.assign(chosen=runs["configuration"] == "top 1", test_acc_all=0.4, test_acc_foreign=0.1)
    better = (runs["algorithm"] == "gfpl") & runs["chosen"]
    runs["test_acc"] = 0.5 + 0.1 * better + runs["seed"] / 100 + (runs["seed"] == 2) / 1000
    runs.loc[0, "test_acc"] += 0.5  # a default's figure, which no contrast reads
    runs.to_parquet(RunFiles(folder, COMPARISON).evaluations_file)
    record = {"format": FORMAT, "command": ["fedtune", "compare"], "versions": {"fedtune": "0"}}
    record |= {"earlier_commits": ["c0c0a"], "git_commit": "c0ffee"}  # it was resumed by other code
    write_json(RunFiles(folder, COMPARISON).record_file, record)
    study, made, table = contrasts.read(folder)
    found = table.set_index(["one", "other"]).loc[("gfpl", "local")]
    assert (study, found["difference"].item()) == ("tuned-few", pytest.approx(10))
    assert (table["verdict"] == contrasts.NOT_RUN).sum() == len(table) - 1
    page = contrasts.text(study, made, table)
    assert "`fedtune compare`, fedtune 0, commit c0c0a and c0ffee" in page
    assert "gfpl − local" in page and "+10.00" in page and "setting" not in page.split("| contrast")[1].splitlines()[0]


def algorithms_of(study: str) -> set[str]:
    """Those that the command of a comparison names; of a program file its name."""
    words = shlex.split(contrasts.studies()[study]["command"])
    return {name.removesuffix(".toml") for name in split(words[words.index("--algos") + 1])}


def controls_of(study: str) -> set[str]:
    """The second name under which a comparison of several searches has its plainest algorithm."""
    command = contrasts.studies()[study]["command"]
    return {"fedavg-again"} if "--searches" in command and "--no-control" not in command else set()


@pytest.mark.parametrize("study", contrasts.studies())
def test_a_study_asks_for_what_its_command_runs(study: str) -> None:
    asked = contrasts.studies()[study]
    names = {c[side] for c in asked["contrasts"] for side in ("one", "other")}
    words = asked["command"].split()
    if "fedtune.analysis.reproduce" in words:
        there = {r.label for panel in GRIDS[study].panels for column in panel.columns for r in rows_of(panel, column)}
        assert asked["columns"] == [c.label.partition(", ")[2] for c in GRIDS[study].panels[0].columns]
    else:
        there, names = algorithms_of(study), names - controls_of(study)
        assert words[-1] == study
        if asked["left_out"].startswith("all algorithms that no contrast names"):
            assert there == names
        else:
            assert there | {asked["left_out"].split(",")[0]} == set(registry.names())
    assert names <= there
    metrics = {c["metric"] for c in asked["contrasts"]}
    assert metrics <= {name for name in METRICS if name.startswith("test_")}
    assert metrics <= set(contrasts.MEASURES) or words[1] == "compare", "a reproduction has these measures only"
