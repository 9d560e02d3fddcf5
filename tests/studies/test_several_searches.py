"""A comparison of several searches of each algorithm: what is one number, what is paired, and what may be claimed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW
from support.comparisons import compared
from support.evaluations import evaluated, spent

from fedtune.analysis import frames
from fedtune.commands import compare, report, resume, status
from fedtune.core import statistics
from fedtune.core.about import FORMAT
from fedtune.core.objectives import ACCURACY
from fedtune.runs import logs
from fedtune.runs.files import RunFiles, write_json
from fedtune.studies.comparison import comparison, method, tables, text
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison.results import Results
from fedtune.studies.options import ComparisonOptions

SEARCHES = 4


def frame(**worth: tuple[float, float]) -> pd.DataFrame:
    """Algorithms by name, each with its accuracy and how far its searches differ; searches have two seeds each."""
    rows: list[dict[str, Any]] = []
    stream = np.random.default_rng(3)
    luck = stream.normal(0, 0.1, (SEARCHES, 2))  # of a seed, the same for all
    for name, (level, apart) in worth.items():
        lift = apart * stream.normal(size=SEARCHES)
        for k, s in itertools.product(range(SEARCHES), range(2)):
            for configuration in ("default", "top 1"):
                acc = level + luck[k, s] + (lift[k] if configuration != "default" else -0.1)
                figures = {"score": 0.8, "val_acc": acc, "test_acc": acc, "reason": "", "config/lr": 0.1 * (k + 1)}
                rows.append(evaluated(name, configuration, 10 * k + s, search=k + 1, **figures))
    return pd.DataFrame(rows)


def test_a_search_is_one_number_the_mean_over_its_seeds() -> None:
    found = frame(a=(0.7, 0.01), b=(0.6, 0.01))
    tuned = found[found["chosen"]].groupby(["algorithm", "search"])["test_acc"].mean().unstack()
    table = tables.table(found, spent("ab"), {}).set_index("algorithm")
    for name in "ab":
        want = statistics.mean(tuned.loc[name])
        assert tuple(table.loc[name, ["tuned", "tuned_half"]]) == pytest.approx(want, abs=1e-12)
    default = found[found["configuration"] == "default"].groupby(["algorithm", "search"])["test_acc"].mean().unstack()
    gain = statistics.paired(tuned.loc["a"], default.loc["a"])
    assert tuple(table.loc["a", ["gain", "gain_half"]]) == pytest.approx(gain[:2], abs=1e-12)
    pair = tables.pairs(found, margin=0.005).iloc[0]
    want = stats.ttest_rel(tuned.loc["a"], tuned.loc["b"])
    assert (pair["difference"], pair["p"]) == pytest.approx(
        (tuned.loc["a"].mean() - tuned.loc["b"].mean(), want.pvalue)
    )
    assert table.loc["a", "runs"] == 2 * SEARCHES
    assert table.loc["a", "configuration"].count(";") == SEARCHES - 1
    # an algorithm of which one search found nothing is not judged by the others
    lacking = found[~((found["algorithm"] == "b") & (found["search"] == 2) & found["chosen"])]
    row = tables.table(lacking, spent("ab"), {}).set_index("algorithm").loc["b"]
    assert math.isnan(row["tuned"]) and math.isnan(row["gain"]) and row["default"] > 0
    assert tables.pairs(lacking, margin=0.005)["verdict"].tolist() == ["not tested"]


def test_a_verdict_is_one_of_three_and_needs_several_searches() -> None:
    found = frame(a=(0.7, 1e-4), b=(0.7, 1e-4), c=(0.6, 1e-4), d=(0.65, 0.3))
    verdicts = tables.pairs(found, margin=0.005).set_index(["algorithm", "other"])["verdict"]
    of = {frozenset(pair): verdict for pair, verdict in verdicts.items()}
    assert of[frozenset("ab")] == "within the margin"
    assert of[frozenset("ac")] == of[frozenset("bc")] == "larger"
    assert of[frozenset("ad")] == of[frozenset("cd")] == "cannot be told"
    same = found.assign(algorithm=found["algorithm"].replace("d", "e"))
    same = pd.concat([found, same[same["algorithm"] == "e"]])  # exactly equal figures have no spread
    verdicts = tables.pairs(same, margin=0.005).set_index(["algorithm", "other"])["verdict"]
    assert verdicts.get(("d", "e"), verdicts.get(("e", "d"))) == "within the margin"
    wide = tables.pairs(found, margin=0.2).set_index(["algorithm", "other"])["verdict"]
    assert {frozenset(p): v for p, v in wide.items()}[frozenset("ac")] == "within the margin"
    lost = found.copy()
    lost.loc[lost["algorithm"] == "c", "test_acc"] = np.nan
    assert (tables.pairs(lost, margin=0.005).query("other == 'c'")["verdict"] == "not tested").all()
    one = found[found["search"] == 1]
    assert set(tables.pairs(one, margin=0.005)["verdict"]) == {""} and not text.judged(tables.pairs(one, margin=0.005))


def test_the_claims_are_those_of_intervals_and_of_two_one_sided_tests() -> None:
    for draw in range(40):
        d = np.random.default_rng(draw).normal(0.01, 0.01, 5)
        margin = 0.005
        described = DescrStatsW(d)
        low, high = described.tconfint_mean(0.05)
        assert (statistics.beyond(d, margin) < 0.05) == (low > margin or high < -margin)
        assert (statistics.inside(d, margin) < 0.05) == (-margin < low and high < margin)
        assert statistics.inside(d, margin) == pytest.approx(
            min(1, 2 * described.ttost_mean(-margin, margin)[0]), rel=1e-9
        )
        assert statistics.beyond(d, 0.0) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=1e-9)
    assert math.isnan(statistics.beyond(np.ones(3), 0.1)) and math.isnan(statistics.inside(np.ones(3), 2.0))
    assert (statistics.beyond(np.zeros(3), 0.1), statistics.inside(np.zeros(3), 0.1)) == (1, 0)  # equal is equal
    assert math.isnan(statistics.inside(np.zeros(1), 0.1)) and math.isnan(statistics.inside(np.zeros(3), 0.0))


def test_verdicts_of_many_algorithms_are_false_no_oftener_than_said() -> None:
    """Ten differences exactly at the margin, where either claim is false: one false claim among the ten in 5 %."""
    stream, false = np.random.default_rng(0), 0
    for _ in range(1500):
        d = stream.normal(0.005, 0.002, (10, 5))
        claims = [(statistics.beyond(each, 0.005), statistics.inside(each, 0.005)) for each in d]
        false += any(v in (tables.LARGER, tables.WITHIN) for v in tables._verdicts(claims))
    assert false / 1500 < 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_the_outcome_is_of_what_is_compared_without_the_control() -> None:
    twice = {"local": (0.5, 1e-4), "fedavg": (0.7, 1e-4), "fedavg-again": (0.8, 1e-4)}
    with_control = tables.table(frame(**twice), spent(twice), {})
    assert with_control["algorithm"].tolist() == ["fedavg-again", "fedavg", "local"]
    last = tables.control_last(with_control, ["fedavg", "fedavg-again"])
    assert last["algorithm"].tolist() == ["fedavg", "local", "fedavg-again"]
    of_two = frame(local=(0.5, 1e-4), fedavg=(0.7, 1e-4))
    said = text.outcome(last, tables.pairs(of_two, margin=0.005), tables.against(of_two, ["local"], margin=0.005))
    assert said.startswith("fedavg ranks first") and said.endswith(" %; local is worse than fedavg.")
    lost = last.assign(tuned=[math.nan, math.nan, 0.8])
    assert not text.outcome(lost, tables.pairs(of_two[:0]), tables.pairs(of_two[:0]))


WORDS = (
    "--algos local --baselines fedavg --scenario digits-w4 --clients 4 --rounds 2 --trials 2 --searcher random "
    "--scheduler none --max-concurrent 1 --seeds 2 --choose-seeds 1 --top-k 2 --no-dashboard --name many --searches 2"
).split()


def test_searches_have_blocks_of_seeds_that_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    words = [*WORDS, "--storage-path", str(tmp_path), "--seeds-per-trial", "2"]
    two, three = compared(*words), compared(*words, "--searches", "3")
    blocks = [[(p.selecting, p.fresh(2)) for p in c.every] for c in (two, three)]
    assert blocks[0] == [([0, 1], [2, 3])] * 3 + [([4, 5], [6, 7])] * 3
    assert blocks[1] == blocks[0] + [([8, 9], [10, 11])] * 3
    chosen = compared(*words, "--choose-seeds", "3", "--top-k", "1")  # two more before the fresh ones
    blocks = [(p.selecting, p.choosing, p.fresh(2)) for p in chosen.every]
    assert blocks == [([0, 1], [2, 3], [4, 5])] * 3 + [([6, 7], [8, 9], [10, 11])] * 3
    names = ["local", "fedavg", "fedavg-again"]
    assert [p.folder.name for p in three.every] == [*names, *(f"{n}+{k}" for k in (2, 3) for n in names)]
    assert [p.draws for p in two.plans.values()] == [0, 0, comparison_plan.OTHER_DRAWS]
    assert list(two.compared) == two.to_record()["options"]["algos"].split(",") == names[:2]
    record = three.to_record() | {"options": {"algos": "all"}}
    assert ComparisonOptions.from_record(record).algos == "local,fedavg"
    alone = compared(*words, "--no-control")
    assert list(alone.plans) == names[:2] and not alone.control
    assert not compared(*words, "--searches", "1").control, "one search has no verdict to control"
    assert {p.space.text()["lr"] for p in three.every} == {three.first.space.text()["lr"]}


def test_by_default_a_comparison_is_what_was_found_to_keep_its_level(tmp_path: Path) -> None:
    """Three searches, whose choices stand, on three fresh seeds: the page on simulated searches measured it."""
    default = compared("--algos", "fedavg,fedprox", "--baselines", "none")
    assert [len(default.searches), default.options.seeds, default.options.choose_seeds] == [3, 3, 3]
    assert default.control and default.options.candidates == 1
    (tmp_path / "grid.py").write_text('SPACE = [{"lr": 0.01}, {"lr": 0.1}]')
    grid = compared("--algos", "fedavg,fedprox", "--baselines", "none", "--space", str(tmp_path / "grid.py"))
    assert len(grid.searches) == 3 and not grid.control, "a grid has no draws that could differ"


@pytest.mark.long
def test_a_comparison_of_several_searches_from_end_to_end(
    tmp_path: Path, one_ray: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([*WORDS, "--storage-path", str(tmp_path)]) == 0
    folder = tmp_path / "many"
    said = capsys.readouterr().out
    assert "3 algorithms (local, the baseline fedavg, the control fedavg-again) × 2 searches × 2 trials = 12" in said
    assert "6 of 6 searches: fedavg-again+2 (the control, search 2 of 2)" in said
    end = said[said.index("can be told apart" if "can be told" in said else "ranks first") :].split("\n")
    assert "2 searches (each the mean over 2 fresh seeds" in " ".join(said.split()) and len(end) < 25
    assert said.count("the best of 2 trials (2 finished): validation accuracy ") == 6, "a line for each search"
    found = pd.read_parquet(folder / "evaluations.parquet")
    assert found.groupby("search")["seed"].unique().map(list).to_dict() == {1: [1, 2], 2: [4, 5]}
    assert found[found["chosen"]].groupby(["algorithm", "search"]).size().tolist() == [2] * 6
    trials = {name: logs.logged(folder / name) for name in ("local", "local+2")}
    assert {len(of) for of in trials.values()} == {2}
    tried = [sorted(str(rows[0]["config"]) for rows in of.values()) for of in trials.values()]
    assert tried[0] != tried[1], "each has draws of its own"
    tried = [sorted(str(r[0]["config"]) for r in logs.logged(folder / n).values()) for n in ("fedavg", "fedavg-again")]
    assert tried[0] != tried[1] and set(tried[0]) & set(tried[1]), "only the default is tried by both"
    default = found[found["configuration"] == "default"].set_index(["seed", "algorithm"])["test_acc"].unstack()
    assert default["fedavg"].equals(default["fedavg-again"].rename("fedavg")), "one run serves both"
    alike = []
    for k, top in itertools.product((1, 2), ("top 1", "top 2")):  # under its own name, by its own configuration
        of = found[(found["search"] == k) & (found["configuration"] == top)]
        one, other = (of[of["algorithm"] == name].reset_index() for name in ("fedavg", "fedavg-again"))
        alike.append(one["config/lr"].equals(other["config/lr"]))
        assert alike[-1] == one["test_loss"].equals(other["test_loss"])
    assert not all(alike)
    assert "control: fedavg took part twice under two names, and fedavg" in said
    pairs = pd.read_csv(folder / "pairs.csv")
    assert pairs[["algorithm", "other"]].to_numpy().size == 2, "the control is no algorithm that is compared"
    assert set(pairs["verdict"]) <= {"larger", "within the margin", "cannot be told", "not tested"}
    record = json.loads((folder / "compare.json").read_text())
    assert record["searches"] == 2
    assert [(c["algorithm"], c["other"], c["verdict"]) for c in record["contrasts"]] == [
        tuple(row) for row in pairs[["algorithm", "other", "verdict"]].to_numpy()
    ]
    assert record["contrasts"][0]["difference"] == pytest.approx(pairs["difference"][0]) and record["outcome"] in said
    seen = frames.by_budget(folder)
    assert set(seen["algorithm"]) == {"local", "fedavg"} and seen["trials"].tolist() == [1, 2] * 2
    assert pd.read_csv(folder / "table.csv")["search_trials"].tolist() == [4, 4, 4]
    before = {folder / f: (folder / f).read_bytes() for f in ("table.csv", "pairs.csv", "budget.csv")}
    for file in [*before, folder / "evaluations.parquet"]:
        file.unlink()
    (folder / "compare.json").write_text(
        (folder / "compare.json").read_text().replace('"state": "finished"', '"state": "interrupted"')
    )
    assert resume.main([str(folder)]) == 0
    assert {f: f.read_bytes() for f in before} == before
    assert status.main([str(folder)]) == 0
    assert "6 of 6 searches begun" in capsys.readouterr().out
    cited = (folder / "method.tex").read_text()
    assert "tuned by 2 searches of 2 trials" in cited and r"\cite{tang2020}" in cited and "2.5 \\%" in cited
    assert "@article{holm1979," in (folder / "references.bib").read_text() and "for a paper: " in said
    assert (folder / "table.tex").read_text().count(r"\begin{table}") == 4 + 2 * (
        pairs["verdict"][0] in (tables.LARGER, tables.WITHIN)
    )
    assert "its difference is" in cited
    shown = (folder / "table.md").read_text()
    assert shown.startswith("# local, fedavg on digits-w4") and text.in_markdown(record["outcome"]) in shown
    assert pd.read_csv(folder / "table.csv")["algorithm"].iloc[-1] == "fedavg-again"
    assert [(c["algorithm"], c["other"]) for c in record["control_contrast"]] == [("fedavg-again", "fedavg")]
    assert report.main([str(folder)]) == 0
    page = (folder / "report.html").read_text()
    said = ("each tuned by 2 searches", "local on", ", search 2", "took part twice", "tuned by 2 searches of 2 trials")
    assert all(words in page for words in (*said, "paired by search, with verdicts against a margin of 0.5 points"))


def results(c: comparison_plan.ComparisonPlan) -> Results:
    """Nothing that was found, but what was planned."""
    none = pd.DataFrame()
    tables = dict.fromkeys(("table", "pairs", "against", "twice", "by_budget"), none)
    evaluations = pd.DataFrame({"configuration": ["top 1"], "test_acc": [0.5]})
    return Results(record=c.to_record(), evaluations=evaluations, **tables)


def test_what_a_preset_makes_unlike_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(method.budgets, "averaged", lambda p: False)  # nothing was searched
    words = "--algos ditto,fedbabu,fedavg --baselines none --scenario digits-w4 --searches 2".split()
    c = compared(*words, "--storage-path", str(tmp_path), "--preset", "as_published")
    (averaging,) = (line for line in c.unlike if line.startswith("averaging"))
    assert averaging == "averaging is rows for fedavg, and clients for all others"
    assert not any(line.startswith("momentum") for line in c.unlike), "what is searched is alike"
    assert f"note: not alike in all algorithms, by --preset as_published: {averaging}" in capsys.readouterr().err
    assert c.to_record()["unlike"] == c.unlike
    assert f"Not alike, by the preset as_published: {averaging}." in " ".join(
        method.sentences(c, results(c), method.Ran([], []))
    )
    assert not compared(*words, "--storage-path", str(tmp_path)).unlike


def test_a_control_has_no_say_in_what_is_widened_and_is_searched_as_its_algorithm_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = compared(*WORDS, "--storage-path", str(tmp_path), "--vary", "lr=0.01..0.1 log", "--widen")
    at_end = "fedavg-again"

    def candidates(p: Any, count: int) -> list[Any]:
        return [None, SimpleNamespace(config={"lr": 0.1 if p.folder.name == at_end else 0.05})]

    monkeypatch.setattr(comparison.fresh_seeds, "candidates", candidates)
    c.folder.mkdir()
    files = RunFiles(c.folder)
    assert comparison._widened(c, files) is c
    at_end = "fedavg"
    wider = comparison._widened(c, files)
    ranges = {n: p.space.text()["lr"] for n, p in wider.plans.items()}
    assert ranges["fedavg-again"] == ranges["fedavg"] != c.plans["fedavg"].space.text()["lr"]
    assert {p.trials for p in wider.every} == {1}
    for p in c.every:  # interrupted after the first searches, whose records have their ranges
        p.folder.mkdir()
        then = p.space.text() | {"momentum": "0..0.9"}
        write_json(p.files.record_file, {"format": FORMAT, "space": then})
    options = ComparisonOptions.from_record(json.loads(json.dumps(c.to_record())))
    on = comparison._widened(comparison_plan.make(options, c.folder), files)
    assert {(p.space.text()["lr"], p.space.text()["momentum"]) for p in on.every} == {(ranges["fedavg"], "0..0.9")}


def test_of_one_algorithm_there_is_still_the_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    c = compared(
        *"--algos fedavg --baselines none --scenario digits-w4 --searches 2 --storage-path".split(), str(tmp_path)
    )
    two = frame(fedavg=(0.7, 0.01), **{"fedavg-again": (0.7, 0.01)})
    twice, none = tables.control(two, c.control), tables.pairs(two[:0])
    found = dataclasses.replace(results(c), pairs=none, against=none, twice=twice)
    monkeypatch.setattr(method.budgets, "averaged", lambda p: False)
    said = method.sentences(c, found, method.Ran([], []))
    assert any(line.startswith("As a control") and text.from_itself(twice) in line for line in said)
    lost = two.assign(test_acc=two["test_acc"].where(two["algorithm"] == "fedavg"))
    assert text.control(tables.control(lost, c.control))[0].endswith("fedavg-again − fedavg is unknown (not tested)")


def test_a_control_that_differs_from_itself_is_a_warning() -> None:
    found = frame(fedavg=(0.7, 1e-4), **{"fedavg-again": (0.6, 1e-4)})
    (said,) = text.control(tables.control(found, ["fedavg", "fedavg-again"], ACCURACY, 0.005))
    assert said.startswith("control: fedavg took part twice") and "not to be trusted" in said
    same = frame(fedavg=(0.7, 1e-4), **{"fedavg-again": (0.7, 1e-4)})
    (said,) = text.control(tables.control(same, ["fedavg", "fedavg-again"], ACCURACY, 0.005))
    assert said.endswith("(within the margin)") and not text.control(tables.control(same, [], ACCURACY, 0.005))
    lost = same[(same["algorithm"] == "fedavg") | ~same["chosen"]]  # no search of the other found anything
    assert tables.control(lost, ["fedavg", "fedavg-again"]).empty


def test_a_control_is_judged_by_the_variance_that_the_verdicts_are_judged_by() -> None:
    found = frame(fedavg=(0.7, 0.01), **{"fedavg-again": (0.71, 0.001)}, gfpl=(0.8, 0.02), local=(0.6, 0.01))
    every = tables.pairs(found).set_index(["algorithm", "other"])
    (control,) = tables.control(found, ["fedavg", "fedavg-again"]).itertuples()
    same = every.loc[("fedavg-again", "fedavg")]
    assert (control.difference, control.half, control.p) == pytest.approx(tuple(same[["difference", "half", "p"]]))
    assert control.p_holm == control.p != tables.pairs(found[found["algorithm"].str.startswith("fedavg")])["p"][0]
