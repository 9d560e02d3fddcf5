"""Reproductions: grids against what was printed, stand-ins, the table, and the command on tiny runs."""

import json
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.commands import refusal

import fedtune
from fedtune.analysis import claims, reproduce
from fedtune.analysis.reproduction import plan, reproduction, substitution, table
from fedtune.analysis.reproduction.options import ReproductionOptions
from fedtune.analysis.reproduction.paper_grid import MEASURES, Column, GridRow, Panel, PaperGrid
from fedtune.analysis.reproduction.paper_tables import GRIDS
from fedtune.analysis.reproduction.plan import planned, requested
from fedtune.analysis.reproduction.report import Report, markdown
from fedtune.commands import compare, status
from fedtune.core.terminal import console
from fedtune.data import datasets
from fedtune.experiment import partitioning, registry
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.runs import overview
from fedtune.runs.files import REPRODUCTION, RunFiles
from fedtune.studies import fresh_seeds, published
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.options import ComparisonOptions
from fedtune.studies.ray_tasks import Outcome
from fedtune.tuning.options import arguments

RESULTS = Path(__file__).parents[2] / "analysis" / "results"
ORIGIN = {
    "command": ["python", "-m", "fedtune.analysis.reproduce", "x"],
    "versions": {"fedtune": "0.1.0"},
    "git_commit": "abc",
}


def spots(grid: PaperGrid) -> list[plan.Spot]:
    return [plan.Spot(p, r, c, ()) for p in grid.panels for c in p.columns for r in p.rows]


def row_of(accuracy: float, t: int = 1) -> dict[str, float]:
    row = {"round": t, "test_acc": accuracy, "val_acc": accuracy, "test_acc_std": 0.1, "test_acc_worst10": 0.1}
    row |= {"test_acc_all": 0.3, "test_acc_foreign": 0.2, "comm_mb": 4.0 * t, "up_floats": 1000.0 * t}
    return row | {"seconds": 1.0, "eval_seconds": 0.5}


def every_place() -> Iterator[tuple[str, plan.Spot, Any]]:
    """Each place of each table, with its table's name and what was printed there."""
    for name, grid in GRIDS.items():
        for spot in spots(grid):
            yield name, spot, table.printed(grid, spot, "accuracy")


# grids ---------------------------------------------------------------------------------------------------------------


def test_every_printed_accuracy_has_its_place_and_every_place_a_figure():
    found, empty = set(), set()
    for name, grid in GRIDS.items():
        for spot in spots(grid):
            for measure in spot.panel.measures:
                cell = table.printed(grid, spot, measure)
                if cell:
                    found.add((cell.paper, cell.table, cell.printed, cell.column))
                elif "table" in name and measure == "accuracy":
                    empty.add((name, spot.row.label))
    wanted = [c for c in published.every() if c.measure in ("accuracy", "rounds", "parameters")]
    assert found == {(c.paper, c.table, c.printed, c.column) for c in wanted}
    # which parts these two figures of the paper are of is lost
    assert empty == {("fedsa-table4", "EMA, R and embedding"), ("fedsa-table4", "EMA, R, embedding and CC")}


def test_the_papers_settings_are_the_scenarios_that_stand_for_them():
    """And only FEMNIST is played on other data."""
    compared = set()
    for _, spot, cell in every_place():
        if not cell:
            continue
        scenario = spot.column.to_scenario()
        same = cell.dataset == scenario.dataset
        assert same == (not spot.column.stands_in) == (cell.dataset != "femnist")
        if cell.scenario and "FashionMNIST9" not in spot.column.label:  # the same figures as FashionMNIST
            assert scenario == SCENARIOS[cell.scenario], spot.column.label
            assert cell.row == spot.row.algorithm or spot.row.config
            compared.add(cell.scenario)
    assert compared == {c.scenario for c in published.every() if c.scenario}


def test_clients_of_figure_7_hold_as_many_classes_as_its_axis_says():
    """Drawn from w̄ ± 2 and cut off below 2, the mean at w̄ = 2 is 3, and a straight line over w̄ looks bent."""
    data = datasets.load("digits")
    for column in (c for p in substitution.on(GRIDS["gfpl-fig7"], "digits").panels for c in p.columns):
        s = column.to_scenario()
        f = partitioning.partition(data, s, seed=0)
        held = [len(set(f.y[f.train.rows[k, : f.train.counts[k]]].tolist())) for k in range(s.clients)]
        assert set(held) == {s.ways}, column.label


def test_ablations_leave_out_what_their_names_say():
    terms = {"L_ad": "gamma_ad", "L_ge": "lam_ge", "L_po": "lam_po"}
    for row in GRIDS["fedpa-table4"].panels[0].rows:
        assert row.config == {field: 0 for term, field in terms.items() if term not in row.label}
    for row in GRIDS["gfpl-table2"].panels[0].rows:
        assert row.config == {part: False for part in ("dcs", "pfg") if part.upper() in row.label}
    one, mixed = (next(r for r in GRIDS[f"fedsa-table{n}"].panels[0].rows if r.label == "FedSA") for n in (1, 2))
    assert one.config == {"lam_cc": 0} and mixed.config == {}


def test_labels_and_short_names_of_defects_are_unique():
    for name, grid in GRIDS.items():
        for dataset in ("", *(["digits"] * (name in ANYWHERE)), "fashion-mnist"):
            placed = substitution.on(grid, dataset) if dataset else grid
            labels = [(s.row.label, s.column.label) for s in spots(placed)]
            assert len(set(labels)) == len(labels), (name, dataset)
    defects = {d for cell in published.every() for d in cell.defects}
    assert len({d.short for d in defects}) == len(defects)  # a footnote is found by the name that table.csv has


# stand-ins -----------------------------------------------------------------------------------------------------------


def test_fashion_mnist_in_mnists_place_is_the_scenario_of_that_name():
    (panel,) = substitution.on(GRIDS["gfpl-table1"], "fashion-mnist").panels
    assert [c.to_scenario() for c in panel.columns] == [SCENARIOS[f"gfpl-fmnist-w{w}"] for w in (3, 4, 5)]
    assert {c.stands_in for c in panel.columns} == {"fashion-mnist for MNIST"}
    first = panel.columns[0]
    assert first.label == "fashion-mnist, w̄ = 3" and first.paper_column("accuracy") == "MNIST, w̄ = 3"
    device = substitution.on(GRIDS["fedsa-table1"], "fashion-mnist").panels[0].columns[1]
    wanted = SCENARIOS["fedsa-fmnist-device"]
    assert device.to_scenario() == wanted.override(rounds=1000)  # ours is shorter
    panels = substitution.on(GRIDS["fedpa-table2"], "fashion-mnist").panels  # a data set of the table itself
    for panel, name in zip(panels, ("fmnist", "fmnist9"), strict=True):
        assert [c.to_scenario() for c in panel.columns] == [SCENARIOS[f"fedpa-{name}-a{a}"] for a in ("0.3", "1")]
        assert not any(c.stands_in for c in panel.columns)
    assert substitution.on(GRIDS["gfpl-table1"], "cifar100").panels == GRIDS["gfpl-table1"].panels[3:4]


def test_what_cannot_be_dealt_is_left_out_and_said():
    grid = substitution.on(GRIDS["fedgenp-table4"], "fashion-mnist")
    assert [c.to_scenario().alpha for c in grid.panels[0].columns] == [0.1, 1, 1]
    assert "α = 0.01 is left out" in grid.note
    celebrities = substitution.on(GRIDS["fedgenp-table5"], "fashion-mnist")
    assert celebrities.panels[0].columns[0].to_scenario().partition == "fedgen" and "no celebrities" in celebrities.note
    one = substitution.on(GRIDS["fedsa-table2"], "digits")  # settings that become one
    (column,) = one.panels[0].columns
    assert column.label == "digits, HtFE2 / HtFE3 / HtFE5 / HtFE8" and column.to_scenario().model == "htmini3"
    assert all(table.printed(one, s, "accuracy") is None for s in spots(one))


# of those whose bodies do not come trained on other data
ANYWHERE = [
    n for n, g in GRIDS.items() if all(c.to_scenario().pretrained == "none" for p in g.panels for c in p.columns)
]


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_table_can_be_played_on_the_digits(name: str):
    grid = substitution.on(GRIDS[name], "digits")._replace(seeds=1)
    found = list(planned(grid, "ours", "cpu"))
    assert len(found) == sum(len(plan.rows_of(p, c)) for p in grid.panels for c in p.columns) > 0
    data = datasets.load("digits")
    for scenario in {s.column.to_scenario() for s in found}:
        partitioning.partition(data, scenario, seed=0)


def test_gfpls_tables_can_be_played_on_the_mnist_that_comes_with_a_package():
    data, played = datasets.load("mnist-5k"), set()
    for name in (n for n in ANYWHERE if n.startswith("gfpl-")):
        grid = substitution.on(GRIDS[name], "mnist-5k")
        assert "on mnist-5k a client has 20 % of the rows" in grid.note
        played |= {c.to_scenario().override(rounds=60) for p in grid.panels for c in p.columns}
    for scenario in played:
        for seed in range(3):
            partitioning.partition(data, scenario, seed)
    assert SCENARIOS["gfpl-mnist5k-w4"].override(shots_spread=0) in played


def test_a_table_whose_bodies_come_trained_stays_on_their_data():
    grid = substitution.on(GRIDS["gfpl-common"], "fashion-mnist")
    assert grid.panels == GRIDS["gfpl-common"].panels
    assert set(GRIDS) - set(ANYWHERE) == {"gfpl-common"}


def test_a_quick_version_is_small_and_keeps_the_ends():
    (part,) = substitution.quick(GRIDS["gfpl-fig6"]).panels
    assert {(c.to_scenario().rounds, substitution.lasting(part, 5).columns[0].paper_rounds) for c in part.columns} == {
        (20, 100)
    }
    quick = substitution.quick(GRIDS["gfpl-fig4"])
    assert quick.seeds == 2 and all(len(p.columns) == 3 for p in quick.panels)
    assert [c.config.get("start") for c in quick.panels[2].columns] == [5, 20, 40]
    for panel in quick.panels:  # what is varied has had its effect by then
        for column in panel.columns:
            gfpl = Experiment(algorithm="gfpl", scenario=column.to_scenario()).resolve(column.config)[0]
            assert gfpl.first_event() <= column.to_scenario().rounds
    assert [c.to_scenario().rounds for c in substitution.quick(GRIDS["fedsa-table3"]).panels[0].columns] == [20, 10, 4]
    (every,) = substitution.quick(GRIDS["gfpl-fig6"], every_column=True).panels
    assert len(every.columns) == 7 and {c.to_scenario().rounds for c in every.columns} == {20}
    assert [p.label for p in substitution.parts(GRIDS["gfpl-fig3"], ["c", "a"]).panels] == ["a: λ", "c: s̄"]
    assert [p.label for p in substitution.parts(GRIDS["gfpl-table2"], ["FEMNIST"]).panels] == ["FEMNIST"]


# the table -----------------------------------------------------------------------------------------------------------


def test_the_same_configuration_under_two_names_is_one_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Experiment, "check", lambda self, config=None: None)  # eight large architectures take seconds
    found = list(planned(GRIDS["fedsa-table5"], "ours", "cpu"))
    assert len({run.label for s in found for run in s.runs}) == 3 * 8  # a default that is written down is another
    labels = {s.column.label: [r.label for r in s.runs] for s in found}["Cifar100, λ_M = 5"]
    assert labels[0] == "FedSA, Cifar100, λ_M = 5, seed 0"
    row = (GridRow("FedSA", "fedsa"),)
    panels = [Panel(p, row, (Column(f"{p}, x", "digits-w4", {}, {"lam_m": 1.0}),)) for p in "ab"]
    grid = PaperGrid("FedSA", "table 5", "", tuple(panels))
    a, b = planned(grid, "ours", "cpu")
    assert a.runs == b.runs and len({r.label for r in a.runs}) == grid.seeds


@pytest.mark.parametrize(("name", "algos"), [("fedpa-table2", "fedavg,fedpa"), ("fedsa-device", "gfpl")])
def test_only_the_rows_of_some_algorithms_are_run(name: str, algos: str):
    asked = [ReproductionOptions(table=name, dataset="digits", algos=given) for given in (None, algos)]
    every, some = map(requested, asked)
    wanted = [s for s in planned(every, "ours", "cpu") if s.row.algorithm in algos.split(",")]
    got = list(planned(some, "ours", "cpu"))
    assert [(s.column.label, s.row, s.runs) for s in got] == [(s.column.label, s.row, s.runs) for s in wanted] and got
    assert ReproductionOptions(table=name, algos=algos).folder != ReproductionOptions(table=name).folder


def test_a_preset_goes_to_the_algorithms_that_have_it():
    """With the defaults beside it, one without a preset has one row."""
    grid = substitution.on(GRIDS["gfpl-table1"], "digits")._replace(seeds=1)
    presets = {s.row.algorithm: s.runs[0].workload.preset for s in planned(grid, "as_published", "cpu")}
    having = {n for n in presets if "as_published" in registry.find(n).presets}
    assert {n for n, preset in presets.items() if preset} == having and 0 < len(having) < len(presets)
    both = list(planned(grid, "ours,as_published", "cpu"))
    rows = [(s.row.algorithm, s.row.preset) for s in both if s.column.label == both[0].column.label]
    assert sorted(rows) == sorted([*((n, "") for n in presets), *((n, "as_published") for n in having)])
    assert len({run.label for s in both for run in s.runs}) == len(both)


def test_what_is_measured_of_a_run():
    outcome = Outcome([row_of(a, t) for t, a in enumerate((0.1, 0.5, 0.76, 0.8), start=1)], "")
    scenario = SCENARIOS["digits-w4"]
    want = {"accuracy": 80, "rounds": 3, "parameters": 2.5, "mb": 4 / scenario.clients, "spread": 10, "val": 80}
    want |= {"all_classes": 30, "foreign": 20, "total_mb": 16}
    assert {m: table.measured(m, outcome, scenario) for m in MEASURES} == want
    diverged = Outcome(outcome.rounds, "diverged in round 5")
    assert all(np.isnan(table.measured(m, diverged, scenario)) for m in MEASURES)


def report(accuracies: dict[str, list[list[float]]], grid: PaperGrid, **reasons: str) -> Report:
    """A played grid: accuracies by row, seed and round."""
    found = list(planned(grid, "ours", "cpu"))
    outcomes = {}
    for s in found:
        for run, accs in zip(s.runs, accuracies[s.row.label], strict=True):
            why = reasons.get(s.row.label, "")
            outcomes[run.label] = Outcome([row_of(a, t) for t, a in enumerate(accs, 1)], why, None if why else "abc")
    return Report(grid=grid, spots=found, outcomes=outcomes, origin=ORIGIN, presets="ours", quick=True)


def small(name: str, dataset: str, rows: set[str], seeds: int) -> PaperGrid:
    """One column and some rows of a table."""
    grid = substitution.on(GRIDS[name], dataset)
    panel = grid.panels[0]
    kept = tuple(r for r in panel.rows if r.label in rows)
    return grid._replace(panels=(panel._replace(rows=kept, columns=panel.columns[:1]),), seeds=seeds)


def test_ours_stands_beside_what_was_printed_with_its_defects(tmp_path: Path):
    grid = small("fedpa-table2", "fashion-mnist", {"FedAvg", "FedPA"}, seeds=3)
    last = (0.80, 0.82, 0.87)
    accs = [[0.1, 0.9, 0.9, 0.9, 0.9, 0.9, end] for end in last]
    made = report({"FedAvg": accs, "FedPA": [[0.5] * 7] * 3}, grid, FedPA="diverged in round 8")
    first, second = made.frame[made.frame["measure"] == "accuracy"].to_dict("records")
    assert first["ours"] == pytest.approx(83)
    half = 4.302652729911275 * np.std(last, ddof=1) / np.sqrt(3) * 100  # Student's t, 2 degrees of freedom
    assert first["half"] == pytest.approx(half)
    assert first["by_paper_rule"] == pytest.approx(90) and first["published"] == 84.36
    assert first["published_spread"] == 0.26 and "five best test rounds" in first["known"]
    assert second["diverged"] == 3 and np.isnan(second["ours"]) and second["published"] == 85.52
    made.write(tmp_path)
    assert list(pd.read_csv(tmp_path / "table.csv")) == list(table.COLUMNS)
    text = (tmp_path / "table.md").read_text()
    assert f"| FashionMNIST, α = 0.3 | FedAvg | 83.00 ± {half:.2f} | 90.00 | 84.36 ± 0.26 | a b" in text
    assert "| FedPA | diverged in 3 of 3 |  | 85.52 ± 0.50 |" in text
    assert " validation | MB in all |" in text and "| 83.00 | 28.0 |" in text
    assert "- a: five best test rounds: " in text and "(FedPA's released code (its plotting))" in text
    assert "at most 200 rounds, 3 seeds and three columns a part" in text
    assert (
        "quick version" in text
        and "`python -m fedtune.analysis.reproduce x`" in text
        and "commit abc and unknown, " in text
    )
    assert "In brackets" not in text


def test_figures_of_other_data_stand_in_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    grid = small("gfpl-table1", "digits", {"GFPL"}, seeds=2)
    grid = grid._replace(panels=tuple(substitution.lasting(p, 3) for p in grid.panels))
    made = report({"GFPL": [[0.8], [0.9]]}, grid)
    made.write(tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "(98.91 ± 0.22)" in text and "digits for MNIST" in text.splitlines()[0] and "not comparable" in text
    assert "MNIST: test accuracy after the last round, % (3 of 100 rounds)" in text
    made.show(console(width=160))
    shown = capsys.readouterr().out
    assert "(98.91 ± 0.22)" in shown and "85.00 ± 63.53" in shown and "± of what is not said" in shown
    made = report({"GFPL": [[0.8], [0.9]]}, small("gfpl-fig6", "digits", {"GFPL"}, seeds=2))
    made.write(tmp_path)  # of a figure nothing was printed
    text = (tmp_path / "table.md").read_text()
    assert "| setting | row | ours |\n" in text and "megabytes" in text and "In brackets" not in text


def test_the_last_round_counts_beside_the_papers_rule():
    """Accuracy 0.1 t + 0.02 seed over seven rounds: 71 % in the last one, 51 % as a mean of the five best."""
    grid = small("fedpa-table2", "fashion-mnist", {"FedAvg", "FedPA"}, seeds=2)
    found = list(planned(grid, "ours,as_published", "cpu"))
    assert [(s.row.label, s.row.preset) for s in found] == [
        (name, preset) for name in ("FedAvg", "FedPA") for preset in ("", "as_published")
    ]
    runs = {run.label: run.workload.seed for s in found for run in s.runs}
    assert len(runs) == 8
    played = {
        label: Outcome([row_of(0.1 * t + 0.02 * seed, t) for t in range(1, 8)], "") for label, seed in runs.items()
    }
    figures = table.frame(grid, found, played)
    accuracies = figures[figures["measure"] == "accuracy"]
    assert accuracies["preset"].tolist() == ["ours", "as_published"] * 2
    assert accuracies["ours"].tolist() == pytest.approx([71] * 4)
    assert accuracies["half"].tolist() == pytest.approx([12.706204736 * 2**0.5 / 2**0.5] * 4)  # t, 1 degree of freedom
    assert accuracies["by_paper_rule"].tolist() == pytest.approx([51] * 4)  # rounds 3 to 7
    assert accuracies["published"].tolist() == [84.36, 84.36, 85.52, 85.52]
    text = markdown(figures)
    assert "| setting | row | preset | ours | by the paper's rule | printed | known | validation | MB in all |" in text
    assert "| FedPA | as_published | 71.00 ± 12.71 | 51.00 | 85.52 ± 0.50 |" in text and "| 71.00 | 28.0 |" in text
    both = "ours,as_published"
    made = Report(grid=grid, spots=found, outcomes=played, origin=ORIGIN, presets=both, quick=False)
    assert "presets ours and as_published" in made.about()[1]


def test_a_part_without_rows_has_all_that_fit_and_the_best_first():
    grid = GRIDS["fedsa-device"]._replace(seeds=2)
    found = list(planned(grid, "ours", "cpu"))
    one, three = ([s for s in found if s.panel == panel] for panel in grid.panels)
    assert {s.row.algorithm for s in one} == set(registry.names()) > {s.row.algorithm for s in three}
    assert {s.row.algorithm for s in one if s.row.config} == {"fedgen", "fedproto", "fedsa"}
    assert {s.row.algorithm for s in three if s.row.config} == {"fedgen", "fedproto"}
    names = [s.row.algorithm for s in three]
    score = {name: 0.3 + 0.01 * i for i, name in enumerate(names)}
    played = {
        run.label: Outcome([row_of(score.get(s.row.algorithm, 0.2), 5)], "diverged" * (s.row.label == names[-1]))
        for s in found
        for run in s.runs
    }
    figures = table.frame(grid, found, played)
    ranked = figures[(figures["part"] == "three architectures") & (figures["measure"] == "accuracy")]
    assert ranked["row"].tolist() == [*names[-2::-1], names[-1]]  # what diverged has no accuracy
    assert ranked["diverged"].tolist() == [0] * (len(names) - 1) + [2]
    text = markdown(figures)
    best, mean = names[-2], 100 * score[names[-2]]
    assert f"| {best} | {mean:.2f} ± 0.00 | 10.00 | 30.00 | 20.00 | {mean:.2f} | 20.0 |" in text
    assert f"| {names[-1]} | diverged in 2 of 2 |  |  |  |  |  |" in text


@pytest.mark.parametrize(
    "name", [f.stem for f in sorted(RESULTS.glob("*.csv")) if f.read_text().startswith("part,setting,row,")]
)
def test_the_table_in_the_repository_is_what_the_command_makes_of_its_figures(name: str):
    head, heading, body = (RESULTS / f"{name}.md").read_text().partition("\n## ")
    assert heading + body == "\n" + markdown(pd.read_csv(RESULTS / f"{name}.csv"))
    assert head.startswith("# ") and "fedtune" in head


def test_rows_of_all_classes_are_scored_where_a_figure_is_of_them():
    """They are more than all clients' own test rows, and no other number depends on them."""
    there = set()
    for name, grid in GRIDS.items():
        for panel in grid.panels:
            of_all = {"all_classes", "foreign"} & set(panel.measures)
            there |= {name} if of_all else set()
            for column in panel.columns:
                whole = column.to_scenario()
                assert panel.scenario_of(column) == (whole if of_all else whole.override(all_classes=0))
    assert there == {"gfpl-few", "gfpl-common", "fedsa-device"}
    more, less = (fedtune.train("gfpl", "digits-w4", clients=3, rounds=2, all_classes=n) for n in (40, 0))
    assert {"test_acc_all", "test_acc_foreign"} <= set(more) - set(less)
    shared = [name for name in less if name not in ("seconds", "eval_seconds")]
    pd.testing.assert_frame_equal(more[shared], less[shared], check_exact=True)


# the command ---------------------------------------------------------------------------------------------------------

TINY = ["gfpl-fig6", "--dataset", "digits", "--quick", "--rounds", "2", "--seeds", "1", "--no-dashboard"]


@pytest.mark.usefixtures("one_ray")
def test_a_command_that_was_cut_short_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    arguments = [*TINY, "--storage-path", str(tmp_path)]
    early = tmp_path / "gfpl-fig6-digits-quick-2rounds-1seeds"
    early.mkdir()
    for name in ("driver.lock", "reproduce.json.part"):  # of a driver that died before its record was whole
        (early / name).touch()
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert "GFPL, figure 6, measured (quick version; digits for MNIST)" in out and "S_C = 300" in out
    (folder,) = tmp_path.iterdir()
    assert folder.name == "gfpl-fig6-digits-quick-2rounds-1seeds"
    assert f"\nfolder: {folder.name} (table.md, table.csv)\nwhole: " in out, "from the working directory"
    words = shlex.split(out.splitlines()[-1].partition("fedtune.analysis.reproduce ")[2])
    assert sorted(words) == sorted([*TINY[:3], TINY[-1], "--storage-path", str(tmp_path)])
    assert status.main([folder.name]) == 0
    said = "reproduction of gfpl-fig6: finished; 6 of 6 runs done"
    assert capsys.readouterr().out == f"{said}\ntables: {folder.name}/table.md\n"
    made = pd.read_csv(folder / "table.csv")
    assert list(made["measure"]) == ["accuracy", "mb"] * 6 and set(made["rounds"]) == {2}
    assert set(made["row"]) == {"GFPL", "GFPL, ball"}  # both readings of algorithm 1, line 5
    assert json.loads((folder / "reproduce.json").read_text())["state"] == "finished"
    runs = sorted((folder / "runs").iterdir())
    assert len(runs) == 6
    runs[1].unlink()  # as if it had been cut short there
    before = {f: f.stat().st_mtime_ns for f in runs if f != runs[1]}
    assert reproduce.main(arguments) == 0
    assert runs[1].exists() and before == {f: f.stat().st_mtime_ns for f in before}
    capsys.readouterr()
    other = ["gfpl-fig4", *TINY[1:], "--name", folder.name, "--storage-path", str(tmp_path)]
    assert reproduce.main(other) == 2 and "was made for table gfpl-fig6; give another --name" in capsys.readouterr().err
    (folder / "reproduce.json").rename(folder / "run.json")  # a search's
    assert reproduce.main(arguments) == 2 and "a run needs a new folder" in capsys.readouterr().err
    pd.testing.assert_frame_equal(pd.read_csv(folder / "table.csv"), made)


@pytest.mark.usefixtures("one_ray")
def test_rows_of_all_classes_are_asked_for_by_a_whole_folder(tmp_path: Path, capsys: pytest.CaptureFixture):
    arguments = [*TINY, "--storage-path", str(tmp_path)]
    assert reproduce.main([*arguments, "--all-classes"]) == 0
    (folder,) = tmp_path.iterdir()
    runs = {f: f.stat().st_mtime_ns for f in (folder / "runs").iterdir()}
    assert all("test_acc_all" in json.loads(f.read_text())["rounds"][-1] for f in runs)
    assert len(claims.Reproduced.read(folder).outcomes) == len(runs) == 6
    assert reproduce.main(arguments) == 2
    assert "was made for all_classes True; give another --name" in capsys.readouterr().err
    assert runs == {f: f.stat().st_mtime_ns for f in (folder / "runs").iterdir()}


@pytest.mark.parametrize(
    ("more", "driven", "head"),
    [
        ({"state": "running"}, True, "running; 2 of 8 runs done"),
        ({"state": "running"}, False, "its driver is gone; 2 of 8 runs done"),
        (
            {"state": "interrupted", "reason": "KeyboardInterrupt: "},
            False,
            "interrupted; 2 of 8 runs done (KeyboardInterrupt: )",
        ),
    ],
)
def test_the_status_of_a_reproduction(more: dict[str, str], driven: bool, head: str, tmp_path: Path, capsys: Any):
    """While it runs, after its driver died, and after it was interrupted."""
    files = RunFiles(tmp_path, REPRODUCTION)
    began = ["python", "-m", "fedtune.analysis.reproduce", "gfpl-fig6", "--name", "a b"]
    files.add(grid={"table": "gfpl-fig6"}, runs=8, concurrent=2, command=began)
    files.write(**more)
    files.runs_folder.mkdir()
    for i in range(2):
        (files.runs_folder / f"{i}.json").write_text('{"rounds": [{"seconds": 50.0, "eval_seconds": 10.0}]}')
    with files.lock() if driven else nullcontext():
        assert overview.Reader().read(tmp_path).over is not driven
        assert status.main([str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"reproduction of gfpl-fig6: {head}"
    assert second.endswith("about 0:03:00 left" if driven else "reproduce gfpl-fig6 --name 'a b' continues it")


@pytest.mark.parametrize(
    ("name", "more"), [("gfpl-fig6", {}), ("fedsa-table2", {"dataset": "digits"}), ("gfpl-table1", {"data_dir": "a b"})]
)
def test_after_a_whole_table_comes_a_comparison_that_can_be_pasted(name: str, more: dict[str, Any]):
    """Of algorithms that run on the table's first setting as they are: FedGen does not on unlike models."""
    options = ReproductionOptions(table=name, **more)
    line = reproduction.next_command(requested(options), options)
    words = shlex.split(line.partition(" compare ")[2])
    asked = ComparisonOptions(**arguments.given(compare.parser().parse_args(words), ComparisonOptions))
    made = comparison_plan.make(asked)
    first = requested(options).panels[0].columns[0].to_scenario()
    assert (
        line.startswith("tuned: ")
        and made.scenario_record["scenario"] == vars(first)
        and asked.data_dir == more.get("data_dir")
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("gfpl-tabel1", "did you mean 'gfpl-table1' or "),
        ("gfpl-table1 --dataset mist", "did you mean 'mnist'?"),
        ("gfpl-common --dataset mnist", "trained on fashion-mnist"),
        ("gfpl-fig6", "mnist is absent"),
        ("gfpl-fig3 --parts a,d", "unknown part 'd'"),
        ("gfpl-fig3 --all-columns", "--all-columns needs --quick"),
        ("gfpl-table2 --algos gfpl,fedrep", "unknown algorithm of the table 'fedrep'"),
        ("gfpl-table2 --algos gfpl,mine.py", "rows of the paper's algorithms"),
        ("gfpl-table1 --dataset mine.npz", "public data sets"),
        ("gfpl-fig6 --dataset digits --preset as_publishd", "did you mean 'as_published'?"),
        ("fedpa-table2 --dataset digits --preset as_text,as_publishd", "did you mean 'as_published'?"),
        ("gfpl-fig6 --dataset digits --name a/b", "'a/b'"),
        ("gfpl-fig6 --rounds 0", "--rounds"),
        ("gfpl-fig6 --seeds x", "--seeds"),
        ("gfpl-fig6 --gpus-per-trial 1.5", "--gpus-per-trial"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(words: str, says: str, tmp_path: Path, capsys: Any):
    storage, data = tmp_path / "runs", tmp_path / "data"
    assert says in refusal(reproduce.main, f"{words} --storage-path {storage} --data-dir {data}", capsys)
    assert not storage.exists()


@pytest.mark.parametrize("arguments", [[], ["--list"]])
def test_the_list_names_every_table(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(arguments) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in GRIDS)


def test_figures_made_of_all_rounds_have_all_rounds_tested():
    """Others have their test rows scored as often as --test-every says."""
    for name, every in (("fedpa-table2", 1), ("gfpl-table2", 7), ("fedsa-table5", 1)):
        first = GRIDS[name].panels[0]
        grid = GRIDS[name]._replace(panels=(first._replace(columns=first.columns[:1]),), seeds=1)
        assert {s.runs[0].workload.test_every for s in planned(grid, "ours", "cpu", 7)} == {every}


def test_the_first_round_near_the_end_is_one_that_was_tested():
    rows = [row_of(0.2, 1), row_of(0.79, 2), row_of(0.79, 3), row_of(0.8, 4)]
    some = [r if r["round"] in (1, 3, 4) else {n: v for n, v in r.items() if n != "test_acc"} for r in rows]
    assert [fresh_seeds.run_summary(Outcome(r, ""))["rounds_to_95"] for r in (rows, some)] == [2, 3]
