"""Verdicts on made-up figures whose answers are known."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.papers import claims
from analysis.papers.claims import FAILS, HOLDS, UNTOLD
from fedtune.runs.files import write_json
from fedtune.studies import ray_tasks, reproduction_plan
from fedtune.studies.options import ReproductionOptions
from fedtune.studies.paper_tables import GRIDS

SEEDS = np.array([0.0, 1.0, 2.0])


def around(mean, noise=0.0):
    return mean + SEEDS + (noise + 0.01 * mean) * np.array([1.0, -1.0, 0.0])


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        (around(5), around(3), HOLDS),
        (around(3), around(5), FAILS),
        (around(5, 3.0), around(4), UNTOLD),  # 1 ± 7
        (around(5), np.array([3.0, np.nan, 3.0]), UNTOLD),
    ],
)
def test_better_needs_an_interval_on_one_side_of_zero(one, other, verdict):
    found = claims.better({"a": one, "b": other}, "a", "b")
    assert found.verdict == verdict
    turned = {HOLDS: FAILS, FAILS: HOLDS, UNTOLD: UNTOLD}[verdict]
    assert claims.better({"a": one, "b": other}, "a", "b", sign=-1).verdict == turned
    assert claims.better({"a": one}, "a", "b").verdict == UNTOLD


def test_one_seed_has_no_interval():
    found = claims.better({"a": np.array([3.0]), "b": np.array([5.0])}, "a", "b", unit="MB")
    assert found == claims.Verdict(UNTOLD, "a − b: −2 MB")
    assert claims.all_of() == claims.Verdict(UNTOLD, "not run")


def test_a_peak_is_better_than_all_others():
    values = {"n = 1": around(1), "n = 4": around(2), "n = 8": around(3)}
    assert claims.peak(values, ["n = 8"]).verdict == HOLDS
    assert claims.peak(values | {"n = 16": around(4)}, ["n = 8"]).verdict == FAILS
    assert claims.peak(values | {"n = 16": around(3, 5.0)}, ["n = 8"]).verdict == UNTOLD
    assert claims.peak({"n = 1": around(1)}, ["n = 8"]).verdict == UNTOLD


def test_linear_holds_for_a_line_fails_off_it_and_is_untold_with_few_seeds():
    line = {f"m = {m}": np.full(3, 2.0 + 0.5 * m) for m in (5, 10, 20)}
    assert claims.linear(line).verdict == HOLDS
    assert claims.linear(line | {"m = 15": np.full(3, 12.0)}).verdict == FAILS
    bent = claims.linear({"m = 0": np.zeros(2), "m = 1": np.array([5.9, 6.1]), "m = 2": np.full(2, 10.0)})
    assert bent.verdict == UNTOLD and "m = 1 6 (+10.0% ± 12.7% off the line)" in bent.why  # t = 12.7 with two seeds
    assert claims.linear(line | {"m = 15": np.array([9.5, np.nan, 9.5])}).verdict == UNTOLD
    assert claims.linear({"m = 5": around(1)}).verdict == UNTOLD


def test_within_holds_only_if_every_mean_does():
    assert claims.within({"a": np.array([0.6]), "b": np.array([0.7])}, 0.5, 0.8).verdict == HOLDS
    assert claims.within({"a": np.array([0.6]), "b": np.array([0.9])}, 0.5, 0.8).verdict == FAILS
    assert claims.within({}, 0.5, 0.8).verdict == UNTOLD


def test_a_claim_of_parts_fails_with_any_and_holds_with_all():
    yes, no, open_ = (claims.Verdict(v, "") for v in (HOLDS, FAILS, UNTOLD))
    assert claims.all_of(yes, yes).verdict == HOLDS
    assert claims.all_of(yes, open_, no).verdict == FAILS
    assert claims.all_of(yes, open_).verdict == UNTOLD and claims.all_of().verdict == UNTOLD


def test_every_claim_is_judged_whether_its_runs_are_there_or_not():
    nothing = claims.judged(lambda *what: {})
    assert set(nothing["verdict"]) == {UNTOLD} and list(nothing["claim"]) == list(claims.CLAIMS)
    steps = dict(zip(["GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL"], range(4), strict=True))
    made: dict[tuple[str, str], claims.Values] = {
        ("gfpl-fig3", "a"): {"λ = 0": around(1), "λ = 2": around(2)},
        ("gfpl-fig6", "S"): {"S_C = 0.1": around(2), "S_C = 300": around(1)},
        ("gfpl-fig4", "b"): {"S_T = 1": around(5), "S_T = 5": around(3)},
    }

    def read(table, part, row, measure):
        return {"ŝ = 1": around(steps[row])} if table == "gfpl-table2" else made.get((table, part), {})

    verdicts = pd.Series(claims.judged(read).set_index("claim")["verdict"])
    assert verdicts[["C1", "C3", "C4"]].tolist() == [HOLDS] * 3 and verdicts["C5"] == FAILS
    assert verdicts[["C2", "C6", "C8"]].tolist() == [UNTOLD] * 3


def test_the_labels_of_claims_are_those_of_the_grids():
    """A renamed column would leave a claim untold for ever."""
    labels = {c.label.partition(", ")[2] for g in GRIDS.values() for p in g.panels for c in p.columns}
    rows = {r.label for g in GRIDS.values() for p in g.panels for r in p.rows}
    wanted = "λ = 0, λ = 2, n = 8, S_C = 0.1, S_C = 300, S_T = 1, S_T = 5, t1 = 5, t1 = 20, t1 = 40"
    assert set(wanted.split(", ")) <= labels
    assert {"GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL", "FedProto"} <= rows


def test_folders_that_reproduce_left_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each folder says itself what was played, so tables may have other seeds and columns."""
    folder, out = tmp_path / "fig7", tmp_path / "out"
    arguments = ["gfpl-fig7", "--dataset", "digits", "--quick", "--parts", "a,c", "--seeds", "2"]
    options = ReproductionOptions("gfpl-fig7", dataset="digits", quick=True, parts="a,c", seeds=2)
    for spot in reproduction_plan.planned(reproduction_plan.requested(options), "ours", "cpu"):
        given = {"components": 1, "ways": 2} | spot.column.config | spot.column.fields
        cost = given["components"] if spot.panel.label.startswith("a") else given["ways"] ** 2
        for run in spot.runs:
            file = ray_tasks.outcome_file(folder / "runs", run, None)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"rounds": [{"comm_mb": float(cost)}], "reason": ""})
    said = {"command": ["fedtune", "reproduce", *arguments], "device": "cpu", "versions": {"fedtune": "1"}}
    (folder / "reproduce.json").write_text(json.dumps(said | {"grid": options.grid}))
    assert claims.main([str(folder), "--write", str(out)]) == 0
    verdicts = pd.read_csv(out / "gfpl-claims.csv").set_index("claim")["verdict"]
    assert verdicts["C7, n"] == HOLDS and verdicts["C7, w̄"] == FAILS and verdicts["C7, m"] == UNTOLD
    assert "`fedtune reproduce gfpl-fig7 --dataset digits --quick" in (out / "gfpl-claims.md").read_text()
    assert "| C7, n |" in capsys.readouterr().out
    assert claims.main([str(tmp_path)]) == 2 and "reproduce.json is missing or damaged" in capsys.readouterr().err
    (tmp_path / "again").symlink_to(folder)
    assert claims.main([str(folder), str(tmp_path / "again")]) == 2
    assert "is gfpl-fig7, too; give one" in capsys.readouterr().err


def test_the_same_setting_on_several_data_sets_is_several_columns(tmp_path: Path):
    options = ReproductionOptions("gfpl-table2", quick=True, seeds=1)
    spots = list(reproduction_plan.planned(reproduction_plan.requested(options), "ours", "cuda"))
    for i, spot in enumerate(spots):
        file = ray_tasks.outcome_file(tmp_path / "runs", spot.runs[0], None)
        file.parent.mkdir(exist_ok=True)
        write_json(file, {"rounds": [{"test_acc": i / 100}], "reason": ""})
    said = {"command": [], "grid": options.grid, "device": "cuda"}
    (tmp_path / "reproduce.json").write_text(json.dumps(said))
    found = claims.Reproduced.read(tmp_path).values("", "GFPL", "accuracy")
    assert len(found) == 6 and {"CIFAR10, ŝ = 1", "FEMNIST, ŝ = 20"} <= set(found)
    assert len({v.item() for v in found.values()}) == 6
