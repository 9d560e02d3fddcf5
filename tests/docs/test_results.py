"""Figures of README are those of the kept runs, and kept tables are those that the code makes of kept runs."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedtune.analysis import borrowed, fedgenp_toy, worth
from fedtune.core.objectives import ACCURACY, Objective
from fedtune.core.terminal import short
from fedtune.experiment.registry import names
from fedtune.studies.comparison import tables
from fedtune.tuning.checked import FinalCheck

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "analysis" / "results"
FIRST = "local_epochs", "lr", "momentum", "lam", "components"  # of what the first search found


@pytest.mark.long
@pytest.mark.parametrize("study", ["tuned-few", "tuned-part"])
def test_the_kept_tables_are_those_of_the_kept_runs(study: str) -> None:
    runs = pd.read_parquet(RESULTS / f"{study}.parquet")
    kept = {kind: pd.read_csv(RESULTS / f"{study}{kind}.csv") for kind in ("", "-pairs", "-against")}
    compared = runs[~runs["algorithm"].str.endswith("-again")]
    made = tables.table(runs, {n: {} for n in kept[""]["algorithm"]}, {})
    other = ["published", *(c for c in made if c.startswith("search_") and c != "search_score")]
    found = {
        "": made.drop(columns=other),
        "-pairs": tables.pairs(compared, ACCURACY, 0.005),
        "-against": tables.against(compared, ["local", "fedavgft"], ACCURACY, 0.005),
    }
    for kind, frame in found.items():
        pd.testing.assert_frame_equal(frame, kept[kind][list(frame)], check_dtype=False, rtol=1e-9)


@pytest.mark.long
def test_the_toys_table_is_what_its_command_writes() -> None:
    toy = pd.read_csv(RESULTS / "fedgenp-toy.csv")
    kept = toy[toy["seed"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(fedgenp_toy.run([40, 100], 0), kept, rtol=0, atol=1 / 600)


def test_figures_of_the_first_pages() -> None:
    run = ROOT / "analysis" / "example" / "default"
    record, best = json.loads((run / "run.json").read_text()), yaml.safe_load((run / "best.yaml").read_text())
    found = [f"{name} = {short(best['hyperparameters'][name])}" for name in FIRST]
    gained = FinalCheck(pd.DataFrame(record["final"]), Objective("val_acc", "max")).verdict()
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{gained}. Best configuration: {', '.join(found)}, …" in readme
    (gain,) = re.findall(r"\+\S+ ± \S+ points", gained)
    assert f"default ({gain} of test accuracy)" in (ROOT / "docs" / "index.md").read_text()


def test_algorithms_are_counted_alike_on_every_page() -> None:
    field = pd.read_csv(RESULTS / "tuned-few.csv").set_index("algorithm").drop("fedavg-again")
    counted = 100 * field.drop("fedbn").dropna(subset=["gain"])[["gain", "default", "tuned"]]
    found = counted["gain"].mean(), *(counted.max() - counted.min())[["default", "tuned"]]
    pages = {file.name: file.read_text() for file in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    for name in ("README.md", "results.md"):
        assert f"{len(field)} of the {len(names())} " in pages[name] and re.search(rf"\b{len(counted)}\b", pages[name])
        assert all(f"{figure:.1f} " in pages[name] for figure in found)
    counts = {int(n) for text in pages.values() for n in re.findall(r"\b([45]\d) (?:built-in )?algorithms", text)}
    assert counts == {len(names()), len(field)}


def test_what_borrowed_values_bring_is_told_as_it_was_found() -> None:
    runs = pd.read_parquet(RESULTS / "tuned-few-borrowed.parquet")
    evaluations = pd.read_parquet(RESULTS / "tuned-few.parquet")
    table, means = borrowed.judged(evaluations, runs)
    default, _ = worth.by_seed(evaluations)
    lost = len(default.columns) - 1 - len(table)  # without FedAvg
    own, lent, both = (
        (table[a] - table[b]).median()
        for a, b in (("tuned", "borrowed"), ("borrowed", "default"), ("tuned", "default"))
    )
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/background/results.md"))
    gained = f"The {len(table)} that do not gain {lent:.1f} points by FedAvg's values, and {own:.1f} more"
    assert f"{lost} others diverge" in readme and gained in readme
    assert f"{lost} have a run that diverged; of all {len(runs)} runs {(runs['reason'] != '').sum()}" in page
    assert (
        f"For the other {len(table)}, tuning gains {both:.1f} points in the median, and FedAvg's values alone" in page
    )
    beyond = means["tuned − borrowed"]
    assert f"{own:.1f} point in the median, and {beyond.mean:.1f} ± {beyond.half:.1f} on average" in page
    clear = table[table["p_holm"] < 0.05]
    assert all(f"(+{r.mean:.1f} ± {r.half:.1f})" in page for r in clear.itertuples()) and len(clear) == 2
    assert f"undecided for {len(table) - len(clear)}" in page
