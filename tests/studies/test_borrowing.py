"""Each algorithm of a comparison is also trained with another one's tuned values of what both have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.comparisons import compared
from support.evaluations import evaluated, spent

from fedtune.analysis import plots, worth
from fedtune.commands import compare, report, resume
from fedtune.core.errors import UserError
from fedtune.engine.simulation import train
from fedtune.runs.tables import plain
from fedtune.studies import fresh_seeds
from fedtune.studies.comparison import comparison, tables, text
from fedtune.studies.comparison.results import Results
from fedtune.studies.options import ComparisonOptions
from fedtune.trainables.fedprox import FedProx

WORDS = (
    "--algos fedprox,fedavg --baselines none --scenario digits-w4 --clients 4 --model cnn8-wide --rounds 2 --trials 2 "
    "--searcher random --scheduler none --max-concurrent 1 --searches 2 --seeds 1 --choose-seeds 1 --top-k 1 "
    "--no-control --no-dashboard --name both"
).split() + ["--vary", "lr=0.05..0.15 log"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, one_ray: None) -> Path:
    folder = tmp_path_factory.mktemp("borrowing")
    assert compare.main([*WORDS, "--storage-path", str(folder)]) == 0
    return folder / "both"


def configs(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The configurations of runs, in the order of their searches."""
    named = runs.sort_values("search")[[c for c in runs if c.startswith("config/")]]
    return [plain({str(n).removeprefix("config/"): v for n, v in row.items()}) for row in named.to_dict("records")]


def test_borrowed_runs_have_each_search_s_values_of_fedavg_and_are_those_trainings(both: Path) -> None:
    found = pd.read_parquet(both / "evaluations.parquet")
    of = found.set_index(["algorithm", "configuration"], drop=False).sort_index()
    borrowed, tuned = of.loc[[("fedprox", "borrowed")]], of.loc[[("fedavg", "top 1")]]
    assert ("fedavg", "borrowed") not in of.index and not borrowed["chosen"].any()
    assert borrowed["seed"].sort_values().tolist() == tuned["seed"].sort_values().tolist() == [1, 3]
    want = [values | {"mu": FedProx().mu} for values in configs(tuned)]
    assert configs(borrowed) == want and want[0] != want[1] and min(v["lr"] for v in want) > 0.01
    c = compared(*WORDS, "--storage-path", str(both.parent / "elsewhere"))
    workload = c.plans["fedprox"].workload
    for config, (_, row) in zip(want, borrowed.sort_values("search").iterrows(), strict=True):
        assert row["test_acc"] == list(train(workload.with_seed(row["seed"]), config))[-1]["test_acc"]
    record = json.loads((both / "compare.json").read_text())
    assert (record["lender"], record["borrowers"], record["unborrowed"]) == ("fedavg", ["fedprox"], [])
    table = pd.read_csv(both / "table.csv").set_index("algorithm")
    assert table.loc["fedprox", "borrowed"] == pytest.approx(borrowed["test_acc"].mean())
    assert len(list((both / "evaluations").glob("*.json"))) <= c.runs[2] == 2 * (2 + 2 + 1)


def interrupted(both: Path, here: Path, **options: Any) -> Path:
    """The comparison as it was before its borrowed runs: without their files, and without its tables."""
    shutil.copytree(both, here)
    for file in [*here.glob("evaluations/*borrowed*"), *here.glob("*.parquet"), *here.glob("*.csv")]:
        file.unlink()
    record = json.loads((here / "compare.json").read_text()) | {"state": "interrupted"}
    record["options"] |= options
    (here / "compare.json").write_text(json.dumps(record))
    return here


def test_borrowed_runs_that_are_missing_are_made_up_for(both: Path, tmp_path: Path) -> None:
    here = interrupted(both, tmp_path / "both")
    kept = {f: f.stat().st_mtime_ns for f in here.glob("evaluations/*.json")}
    assert len(kept) < len(list(both.glob("evaluations/*.json")))
    assert resume.main([str(here)]) == 0
    timed = ["seconds", "search_seconds"]
    got, want = (pd.read_csv(at / "table.csv").drop(columns=timed) for at in (here, both))
    pd.testing.assert_frame_equal(got, want, check_exact=True)
    assert {f: f.stat().st_mtime_ns for f in kept} == kept


def test_a_comparison_from_before_borrows_nothing_and_its_findings_stay(both: Path, tmp_path: Path) -> None:
    here = interrupted(both, tmp_path / "both")
    record = json.loads((here / "compare.json").read_text())
    for name in ("lender", "borrowers", "unborrowed"):
        del record[name]
    del record["options"]["borrow"]
    (here / "compare.json").write_text(json.dumps(record))
    assert ComparisonOptions.from_record(record).borrow == "none"
    assert resume.main([str(here)]) == 0 and report.main([str(here)]) == 0
    then, now = (pd.read_parquet(at / "evaluations.parquet").drop(columns="seconds") for at in (here, both))
    same = now[now["configuration"] != "borrowed"].reset_index(drop=True)
    pd.testing.assert_frame_equal(then, same, check_exact=True)
    assert list(pd.read_csv(here / "table.csv")) == list(tables.COLUMNS)
    assert (here / "pairs.csv").read_bytes() == (both / "pairs.csv").read_bytes()


def test_searches_that_an_earlier_version_would_have_begun_are_refused(
    both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ranges and defaults were others, so they could not be compared with those that it made."""
    here = interrupted(both, tmp_path / "both")
    shutil.rmtree(here / "fedprox+2")
    record = json.loads((here / "compare.json").read_text())
    del record["options"]["borrow"]
    (here / "compare.json").write_text(json.dumps(record))
    assert resume.main([str(here)]) == 2
    assert "begun by an earlier version" in capsys.readouterr().err and not (here / "fedprox+2").exists()


def test_who_lends_is_fedavg_where_it_takes_part_or_whom_one_names(tmp_path: Path) -> None:
    at = ("--storage-path", str(tmp_path), "--scenario", "digits-w4", "--clients", "4")
    usual = compared("--algos", "fedprox,fedavg,fedavgft", "--baselines", "local", *at)
    assert usual.lender == "fedavg" and usual.control == ("fedavg", "fedavg-again")
    assert usual.borrowers == ["fedprox", "fedavgft", "local"], "neither FedAvg nor FedAvg under another name"
    assert usual.to_record()["options"]["borrow"] == "fedavg"
    assert "on fresh seeds, also with fedavg's tuned values; in all" in usual.in_words[1]
    without = compared("--algos", "fedprox,fedavg", "--baselines", "none", "--borrow", "none", *at)
    other = compared("--algos", "fedprox,fedper", "--baselines", "none", *at)
    for c in (without, other):
        assert not c.lender and not c.borrowers and "lender" not in c.to_record()
    named = compared("--algos", "fedprox,fedavg", "--baselines", "local", "--borrow", "local", *at)
    assert named.lender == "local" and named.borrowers == ["fedprox", "fedavg", "fedavg-again"]
    with pytest.raises(UserError, match="--borrow"):
        compared("--algos", "fedprox,fedper", "--baselines", "none", "--borrow", "fedavg", *at)


NARROW = """
from dataclasses import dataclass
from fedtune import hyper
from fedtune.trainables.fedavg import FedAvg

@dataclass(frozen=True)
class Narrow(FedAvg):
    follows: float | None = hyper(None, 1e-4, 1.0, log=True, help="a rate; none: lr")
    lr: float = hyper(0.01, 0.001, 0.02, log=True, help="step size")
"""


def test_a_value_that_an_algorithm_refuses_is_said_and_an_open_default_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "narrow.py").write_text(NARROW)
    words = f"--algos {tmp_path / 'narrow.py'},fedavg,local --baselines none --no-control --searches 3 --vary batch"
    c = compared(*words.split(), "--scenario", "digits-w4", "--storage-path", str(tmp_path))
    own = next(n for n in c.plans if "narrow" in n)
    best = iter([{"lr": 0.3, "momentum": 0.9}, {"lr": 0.02, "momentum": 0.9, "batch": 8}, None])

    def candidates(p: Any, top: int) -> list[fresh_seeds.Candidate]:
        return [fresh_seeds.Candidate("default", {}), *(fresh_seeds.Candidate("top 1", v) for v in [next(best)] if v)]

    monkeypatch.setattr(fresh_seeds, "candidates", candidates)
    found, lacking = comparison._borrowed(c)
    assert set(found) == {(1, "local"), (2, own), (2, "local")}
    assert lacking[0].startswith(f"{own} is not trained with the values of fedavg's search 1: lr must be")
    assert lacking[0].endswith("got 0.3") and lacking[1:] == [
        "nobody is trained with the values of fedavg's search 3: it found nothing"
    ]
    config = found[2, own].config
    assert (config["lr"], config["momentum"], config["batch"], config["follows"]) == (0.02, 0.9, 8, 0.02)
    assert config["local_epochs"] == c.plans[own].default()["local_epochs"]


def frame(**means: tuple[float, ...]) -> pd.DataFrame:
    """Algorithms, each with its figures by default, tuned, and borrowed, on four seeds."""
    noise, kinds = np.array([0.01, -0.01, 0.02, -0.02]), ("default", "top 1", "borrowed")
    rows = [
        evaluated(name, kind, s, score=0.8, val_acc=mean, test_acc=mean + noise[s] * (1 + i), reason="")
        for name, of in means.items()
        for i, (kind, mean) in enumerate(zip(kinds, of, strict=False))
        for s in range(4)
    ]
    return pd.DataFrame(rows)


def test_what_tuning_gains_beyond_borrowed_values_is_paired_as_the_gain_is() -> None:
    found = frame(fedavg=(0.4, 0.7), fedprox=(0.4, 0.8, 0.5), local=(0.3, 0.6, 0.6))
    made = tables.table(found, spent(["fedavg", "fedprox", "local"]), {}, lender="fedavg")
    assert list(made) == [*tables.COLUMNS, *tables.BORROWED_COLUMNS]
    row = made.set_index("algorithm")
    assert row["borrowed"].tolist()[0] == pytest.approx(0.5) and np.isnan(row.loc["fedavg", "borrowed"])
    assert tuple(row.loc["fedprox", ["beyond", "gain"]]) == pytest.approx((0.3, 0.4))
    assert row.loc["fedprox", "beyond_half"] == pytest.approx(row.loc["fedprox", "gain_half"])  # one noise more or less
    shown = text.shown(made)
    assert list(shown)[1 : text.OPENING] == [
        "tuned %",
        "default %",
        "with fedavg's values %",
        "gain",
        "gain over borrowed",
    ]
    assert shown.loc[1].tolist()[3] == shown.loc[1].tolist()[5] == "–"
    some = found[
        (found["configuration"] != "borrowed") | (found["seed"] < 2)
    ]  # the other search of fedavg found nothing
    lost = some.assign(test_acc=some["test_acc"].where((some["configuration"] != "borrowed") | (some["seed"] > 0)))
    few = tables.table(lost, spent(["fedavg", "fedprox", "local"]), {}, lender="fedavg")
    assert text.shown(few)["with fedavg's values %"].tolist()[0] == "diverged in 1 of 2"
    plainly = found[found["configuration"] != "borrowed"]
    before = tables.table(plainly, spent(["fedavg", "fedprox", "local"]), {})
    pd.testing.assert_frame_equal(before, made[list(before)], check_exact=True)
    pd.testing.assert_frame_equal(tables.pairs(found), tables.pairs(plainly), check_exact=True)
    assert fresh_seeds.is_tuned(found).tolist() == found["chosen"].tolist()
    figure = plots.comparison(found)
    assert [t.name for t in figure.data if t.mode == "markers"] == ["default", "borrowed", "tuned"]
    assert list(next(t.x for t in figure.data if t.name == "borrowed")) == pytest.approx([50, 60])
    assert "borrowed" not in {t.name for t in plots.comparison(plainly).data}
    gained = worth.gains(*worth.by_seed(found, untuned="borrowed")).set_index("algorithm")["gain"]
    assert gained.to_dict() == pytest.approx({"fedprox": 30, "local": 0, "mean of all": 15})


def test_a_folder_s_tables_say_whose_values_were_borrowed(both: Path) -> None:
    found = Results.read(both)
    assert list(found.titled[0].text)[3] == "with fedavg's values %"
    assert "with fedavg's tuned values of the hyperparameters that both have" in (both / "method.md").read_text()
    assert "li2020fedprox" in (both / "references.bib").read_text()
