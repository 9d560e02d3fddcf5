"""Verdicts on made-up figures whose answers are known."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedtune.analysis import claims, verdicts
from fedtune.analysis.reproduction import plan as reproduction_plan
from fedtune.analysis.reproduction import table as reproduction_table
from fedtune.analysis.reproduction.options import ReproductionOptions
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.analysis.verdicts import FAILS, HOLDS, NOTHING, PARTLY, SMALLER, UNTOLD
from fedtune.core.about import FORMAT
from fedtune.runs.files import write_json
from fedtune.studies import ray_tasks

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
    found = verdicts.better({"a": one, "b": other}, "a", "b")
    assert found.verdict == verdict
    turned = {HOLDS: FAILS, FAILS: HOLDS, UNTOLD: UNTOLD}[verdict]
    assert verdicts.better({"a": one, "b": other}, "a", "b", sign=-1).verdict == turned
    assert verdicts.better({"a": one}, "a", "b").verdict == UNTOLD


def test_what_was_claimed_and_lies_beyond_the_interval_is_smaller():
    """0 ± 0.5 with five seeds excludes 4.86 and tells of nothing above half a point only where nothing is claimed."""
    noise = np.array([0.4, -0.4, 0.1, -0.1, 0.0])
    values = {"a": 90 + noise, "b": np.full(5, 90.0)}
    half = stats.t.ppf(0.975, 4) * noise.std(ddof=1) / 5**0.5
    for claimed, verdict in ((4.86, SMALLER), (half + 0.01, SMALLER), (half - 0.01, UNTOLD), (-1.0, SMALLER)):
        found = verdicts.better(values, "a", "b", claimed=claimed)
        assert found.verdict == verdict and f"({claimed:+.2f} claimed)".replace("-", "−") in found.why
    assert verdicts.better({"a": 95 + noise, "b": np.full(5, 90.0)}, "a", "b", claimed=9.0).verdict == HOLDS


def test_no_effect_is_two_one_sided_tests():
    """Schuirmann's: both p below 5 %, which is the 90 % interval within ± half a point."""
    seen = set()
    for scale in np.linspace(0.1, 3.0, 30):
        d = scale * np.array([0.5, -0.3, 0.2, -0.4, 0.1])
        low, high = (stats.ttest_1samp(d, m, alternative=a).pvalue for m, a in ((-0.5, "greater"), (0.5, "less")))
        verdict = verdicts.better({"a": 80 + d, "b": np.full(5, 80.0)}, "a", "b").verdict
        assert verdict == (NOTHING if max(low, high) < 0.05 else UNTOLD)
        assert verdicts.better({"a": 80 + d, "b": np.full(5, 80.0)}, "a", "b", unit="MB").verdict == UNTOLD
        seen.add(verdict)
    assert seen == {NOTHING, UNTOLD}


def test_a_printed_ratio_of_whole_numbers_has_an_interval():
    """33/41 may be 32.5/41.5 to 33.5/40.5, and 404/500 lies there; 2/4 may be 0.33 to 0.71."""
    printed = {"MNIST": (2, 4), "CIFAR10": (33, 41)}
    found = verdicts.as_printed({"ŵ = 0": np.full(3, 404 / 500), "ŵ = 2": np.full(3, 0.8083)}, printed)
    assert found == verdicts.ClaimVerdict(
        PARTLY, "0.81 here; not as printed for MNIST (0.33 to 0.71), as printed for CIFAR10 (0.78 to 0.83)"
    )
    assert verdicts.as_printed({"x": np.array([0.5])}, {"MNIST": (2, 4)}).verdict == HOLDS
    assert verdicts.as_printed({"x": np.array([0.9])}, printed).verdict == FAILS
    assert verdicts.as_printed({}, printed).verdict == UNTOLD


def test_rounds_lie_near_what_was_printed_by_their_interval():
    assert verdicts.near({"x": np.array([78.0, 82, 80])}, 80).verdict == HOLDS
    assert verdicts.near({"x": np.array([28.0, 32, 30])}, 80).verdict == FAILS
    assert verdicts.near({"x": np.array([60.0, 90, 80])}, 80).verdict == UNTOLD
    assert verdicts.near({}, 80).verdict == UNTOLD


def test_one_seed_has_no_interval():
    found = verdicts.better({"a": np.array([3.0]), "b": np.array([5.0])}, "a", "b", unit="MB")
    assert found == verdicts.ClaimVerdict(UNTOLD, "a − b: −2 MB")
    assert verdicts.all_of() == verdicts.ClaimVerdict(UNTOLD, "not run")


def test_a_peak_is_better_than_all_others():
    values = {"n = 1": around(1), "n = 4": around(2), "n = 8": around(3)}
    assert verdicts.peak(values, ["n = 8"]).verdict == HOLDS
    assert verdicts.peak(values | {"n = 16": around(4)}, ["n = 8"]).verdict == FAILS
    assert verdicts.peak(values | {"n = 16": around(3, 5.0)}, ["n = 8"]).verdict == UNTOLD
    assert verdicts.peak({"n = 1": around(1)}, ["n = 8"]).verdict == UNTOLD


def test_linear_holds_for_a_line_fails_off_it_and_is_untold_with_few_seeds():
    line = {f"m = {m}": np.full(3, 2.0 + 0.5 * m) for m in (5, 10, 20)}
    assert verdicts.linear(line).verdict == HOLDS
    assert verdicts.linear(line | {"m = 15": np.full(3, 12.0)}).verdict == FAILS
    bent = verdicts.linear({"m = 0": np.zeros(2), "m = 1": np.array([5.9, 6.1]), "m = 2": np.full(2, 10.0)})
    assert bent.verdict == UNTOLD and "m = 1 6 (+10.0% ± 12.7% off the line)" in bent.why  # t = 12.7 with two seeds
    assert verdicts.linear(line | {"m = 15": np.array([9.5, np.nan, 9.5])}).verdict == UNTOLD
    assert verdicts.linear({"m = 5": around(1)}).verdict == UNTOLD


def test_within_holds_only_if_every_mean_does():
    assert verdicts.within({"a": np.array([0.6]), "b": np.array([0.7])}, 0.5, 0.8).verdict == HOLDS
    assert verdicts.within({"a": np.array([0.6]), "b": np.array([0.9])}, 0.5, 0.8).verdict == FAILS
    assert verdicts.within({}, 0.5, 0.8).verdict == UNTOLD


def test_a_claim_of_parts_fails_with_any_and_holds_with_all():
    yes, no, open_ = (verdicts.ClaimVerdict(v, "") for v in (HOLDS, FAILS, UNTOLD))
    assert verdicts.all_of(yes, yes).verdict == HOLDS
    assert verdicts.all_of(yes, open_, no).verdict == FAILS
    assert verdicts.all_of(yes, open_).verdict == UNTOLD and verdicts.all_of().verdict == UNTOLD
    small, none = (verdicts.ClaimVerdict(v, "") for v in (SMALLER, NOTHING))
    assert verdicts.all_of(yes, small, open_).verdict == SMALLER and verdicts.all_of(none, small).verdict == SMALLER
    assert verdicts.all_of(yes, none).verdict == NOTHING and verdicts.all_of(small, no).verdict == FAILS


def test_every_claim_is_judged_whether_its_runs_are_there_or_not():
    nothing = claims.judged(lambda *what: {})
    assert set(nothing["verdict"]) == {UNTOLD} and list(nothing["claim"]) == list(claims.CLAIMS)
    steps = dict(zip(["GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL"], range(4), strict=True))
    made: dict[tuple[str, str], verdicts.Values] = {
        ("gfpl-fig3", "a"): {"λ = 0": around(1), "λ = 2": around(2)},
        ("gfpl-fig6", "S"): {"S_C = 0.1": around(2), "S_C = 300": around(1)},
        ("gfpl-fig4", "b"): {"S_T = 1": around(5), "S_T = 5": around(3)},
    }

    def read(table, part, row, measure):
        if table == "gfpl-fig4" and part == "a":
            if measure == "accuracy":
                return {"ŵ = 0": around(90 if row == "GFPL" else 80)}
            sent = {"parameters": 0.808, "mb": 4.8}[measure]
            return {"ŵ = 0": np.full(3, sent if row == "GFPL" else 1.0) + 1e-9 * SEEDS}
        if table == "gfpl-table2":
            step = around(steps[row])
            return {"ŝ = 1": np.array([55.62 + steps[row]]) if measure == "printed" else step}
        return made.get((table, part), {})

    table = claims.judged(read, lambda name, part: f"{name} {part}").set_index("claim")
    found = table["verdict"]
    assert found[["C1", "C1, frame", "C1, sum", "C3", "C4", "fig. 4a"]].tolist() == [HOLDS] * 6 and found["C5"] == FAILS
    assert found[["C2", "C6", "fig. 3c", "C9", "C10", "C11"]].tolist() == [UNTOLD] * 6
    assert (found["C8"], found["C8b"]) == (PARTLY, FAILS) and "CIFAR10 (0.78 to 0.83)" in table.loc["C8", "measured"]
    assert "(+1.00 claimed)" in table.loc["C3", "measured"] and table.loc["C4", "where"] == "gfpl-fig6 S"


def test_a_head_s_accuracy_is_its_own_or_that_of_the_only_one():
    row = {"test_acc": 0.5, "test_acc_etf": 0.25, "val_acc": 0.5, "comm_mb": 1.0}
    many, one = ray_tasks.Outcome([row], ""), ray_tasks.Outcome([{**row, "test_acc_etf": 0.5}], "")
    del one.rounds[0]["test_acc_etf"]
    scenario = GRIDS["gfpl-fig6"].panels[0].columns[0].to_scenario()
    assert reproduction_table.measured("accuracy_etf", many, scenario) == 25
    assert reproduction_table.measured("accuracy_etf", one, scenario) == 50


def test_the_labels_of_claims_are_those_of_the_grids():
    """A renamed column would leave a claim untold for ever."""
    labels = {c.label.partition(", ")[2] for g in GRIDS.values() for p in g.panels for c in p.columns}
    rows = {r.label for g in GRIDS.values() for p in g.panels for r in p.rows}
    wanted = "w̄ = 3, w̄ = 4, w̄ = 5, λ = 0, λ = 2, n = 8, S_C = 0.1, S_C = 300, S_T = 1, S_T = 5, t1 = 5, t1 = 20"
    wanted += ", t1 = 40"
    assert set(wanted.split(", ")) <= labels
    assert {"GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL", "FedProto"} <= rows


def leave_figure_7(folder: Path, parts: str, dataset: str = "digits") -> None:
    """What a reproduction leaves of parts of the figure: a cost linear in n, and quadratic in w̄."""
    arguments = ["gfpl-fig7", "--dataset", dataset, "--quick", "--parts", parts, "--seeds", "2"]
    options = ReproductionOptions(table="gfpl-fig7", dataset=dataset, quick=True, parts=parts, seeds=2)
    for spot in reproduction_plan.planned(reproduction_plan.requested(options), "ours", "cpu", options.test_every):
        given = {"components": 1, "ways": 2} | spot.column.config | spot.column.fields
        cost = given["components"] if spot.panel.label.startswith("a") else given["ways"] ** 2
        for run in spot.runs:
            file = ray_tasks.outcome_file(folder / "runs", run, None)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {"rounds": [{"comm_mb": float(cost)}], "reason": ""})
    said = {
        "command": ["python", "-m", "fedtune.analysis.reproduce", *arguments],
        "device": "cpu",
        "versions": {"fedtune": "1"},
    }
    (folder / "reproduce.json").write_text(json.dumps(said | {"grid": options.grid, "format": FORMAT}))


def test_folders_that_reproduce_left_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each folder says itself what was played, so tables may have other seeds and columns."""
    folder, out = tmp_path / "fig7", tmp_path / "out"
    leave_figure_7(folder, "a,c")
    assert claims.main([str(folder), "--write", str(out)]) == 0
    found = pd.read_csv(out / "gfpl-claims-digits.csv").set_index("claim")["verdict"]
    assert dict(found) == {"C7, n": HOLDS, "C7, w̄": FAILS}
    page = (out / "gfpl-claims-digits.md").read_text()
    assert "Not judged, because their settings were not run: C1; C1, frame; " in page and "C7, m; C8; " in page
    assert "| digits, 20 of 100 rounds, 2 seeds |" in (out / "gfpl-claims-digits.md").read_text()
    assert (
        "`python -m fedtune.analysis.reproduce gfpl-fig7 --dataset digits --quick"
        in (out / "gfpl-claims-digits.md").read_text()
    )
    assert "| C7, n |" in capsys.readouterr().out
    assert claims.main([str(tmp_path)]) == 2 and "is not a study folder: it has none of" in capsys.readouterr().err


def test_a_table_that_no_claim_is_of_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ReproductionOptions(table="gfpl-few", quick=True, seeds=1)
    said = {"command": [], "device": "cpu", "grid": options.grid, "format": FORMAT}
    (tmp_path / "reproduce.json").write_text(json.dumps(said))
    assert claims.main([str(tmp_path), "--write", str(tmp_path / "out")]) == 2
    assert "figures 3, 4, 6 and 7 of GFPL, but got gfpl-few" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_parts_of_a_table_may_lie_in_several_folders_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, parts in (("n", "a"), ("w", "c"), ("both", "a,c")):
        leave_figure_7(tmp_path / name, parts)
    assert claims.main([str(tmp_path / "both")]) == 0
    of_one = capsys.readouterr().out.split("From the runs of")[0]
    assert claims.main([str(tmp_path / "n"), str(tmp_path / "w")]) == 0
    assert capsys.readouterr().out.split("From the runs of")[0] == of_one
    assert claims.main([str(tmp_path / "n"), str(tmp_path / "both")]) == 2
    assert "both have gfpl-fig7, a: n; give one" in capsys.readouterr().err
    leave_figure_7(tmp_path / "other", "c", "fashion-mnist")
    assert claims.main([str(tmp_path / "n"), str(tmp_path / "other")]) == 2
    assert "on one data set at a time, but got" in (error := capsys.readouterr().err) and "(fashion-mnist)" in error


@pytest.mark.parametrize("test_every", [1, 10])  # runs are found again whatever rounds were tested
def test_the_same_setting_on_several_data_sets_is_several_columns(test_every: int, tmp_path: Path):
    options = ReproductionOptions(table="gfpl-table2", quick=True, seeds=1, test_every=test_every)
    spots = list(reproduction_plan.planned(reproduction_plan.requested(options), "ours", "cuda", test_every))
    for i, spot in enumerate(spots):
        file = ray_tasks.outcome_file(tmp_path / "runs", spot.runs[0], None)
        file.parent.mkdir(exist_ok=True)
        write_json(file, {"rounds": [{"test_acc": i / 100}], "reason": ""})
    said = {"command": [], "grid": options.grid, "device": "cuda", "format": FORMAT}
    (tmp_path / "reproduce.json").write_text(json.dumps(said))
    found = claims.Reproduced.read(tmp_path).values("", "GFPL", "accuracy")
    assert len(found) == 6 and {"CIFAR10, ŝ = 1", "FEMNIST, ŝ = 20"} <= set(found)
    assert len({v.item() for v in found.values()}) == 6
