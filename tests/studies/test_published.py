"""What the papers printed: figures against FedProto's own table, the papers' prose and each other."""

import fnmatch
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedtune.experiment.scenarios import SCENARIOS
from fedtune.studies import published

# paper, table -> rows, columns
SHAPES = {
    ("GFPL", "table 1"): (10, 20), ("GFPL", "table 2"): (4, 6), ("GFPL", "table 3"): (7, 4),
    ("GFPL", "figure 3a"): (1, 2), ("FedPA", "table II"): (6, 7), ("FedPA", "table III"): (4, 3),
    ("FedPA", "table IV"): (6, 1), ("FedPA", "table V"): (4, 8), ("FedGenP", "table 2"): (5, 1),
    ("FedGenP", "table 3"): (4, 6), ("FedGenP", "table 4"): (4, 4), ("FedGenP", "table 5"): (4, 5),
    ("FedGenP", "table 6"): (1, 4), ("FedSA", "table 1"): (8, 6), ("FedSA", "table 2"): (8, 4),
    ("FedSA", "table 3"): (8, 3), ("FedSA", "table 4"): (3, 1), ("FedSA", "table 5"): (1, 8),
}  # fmt: skip


def table(paper: str, name: str) -> dict[tuple[str, str], published.Cell]:
    return {(c.printed, c.column): c for c in published.every() if (c.paper, c.table) == (paper, name)}


def shorts(cell: published.Cell) -> set[str]:
    return {d.short for d in cell.defects}


def test_every_table_is_whole():
    frame = published.cells()
    assert list(frame) == [f.name for f in fields(published.Cell) if f.name not in ("text", "stands_in")]
    found = frame.groupby(["paper", "table"], sort=False)
    assert {key: (part["printed"].nunique(), part["column"].nunique()) for key, part in found} == SHAPES
    assert all(len(part) == np.prod(SHAPES[key]) for key, part in found)
    assert not frame.duplicated(["paper", "table", "printed", "column"]).any()
    assert frame["mean"].dtype == float and frame["spread"].dtype == float
    assert frame["measure"].isin(["accuracy", "rounds", "parameters", "distance", "setting"]).all()
    assert not {30.80, 30.61} & {*frame.query("table == 'table 4' and paper == 'FedSA'")["mean"]}, "lost is left out"
    accuracies = frame[frame["measure"] == "accuracy"]
    assert accuracies["mean"].between(16, 99).all() and (accuracies["spread"].dropna() < 11).all()


def test_one_setting_with_three_values_says_so():
    for algo, values in (("fedpa", [78.25, 77.14, 78.93]), ("fedavg", [70.09, 70.13, 70.94])):
        found = published.of("fedpa-emnist-a0.1", algo)
        assert [c.mean for c in found] == values
        assert all("three values of one setting" in published.note(c) for c in found)
    assert [c.mean for c in published.of("fedpa-emnist-a0.1", "fedgen")] == [76.34, 75.59]


# what a label says -> the scenario's field
SAID = {"w̄": "ways", "α": "alpha", "C": "participation", "r": "participation", "E": "local_epochs"}


def test_scenarios_exist_and_are_the_settings_that_labels_name():
    named = [c for c in published.every() if c.scenario]
    assert len({c.scenario for c in named}) >= 30
    for cell in named:
        scenario = SCENARIOS[cell.scenario]
        assert scenario.dataset == cell.dataset, cell
        for symbol, value in re.findall(r"(\S+) = ([\d.]+)", cell.column):
            if symbol in SAID:
                assert getattr(scenario, SAID[symbol]) == float(value), cell
        for word, clients in (("cross-silo", 20), ("cross-device", 100), ("HtFE8", 100)):
            assert word not in cell.column or scenario.clients == clients
        if share := re.search(r"(\d+) %", cell.column):
            assert scenario.share == float(share[1]) / 100
        if active := re.search(r"(\d+) active", cell.column):
            assert scenario.participants == int(active[1])
    for cell in published.every():
        for name, what in cell.instead.items():
            other = SCENARIOS[name]
            assert what and (other.dataset != cell.dataset or other.skip_classes)


def test_a_stand_in_is_no_target():
    (exact,), (other,) = published.of("gfpl-mnist-w4", "gfpl"), published.of("gfpl-fmnist-w4", "gfpl")
    assert exact.mean == other.mean == 98.01 and exact.text == "98.01 ± 0.32"
    assert not exact.stands_in and other.stands_in == "Fashion-MNIST for MNIST"
    assert all("\n" not in (note := published.note(c)) and len(note) < 140 for c in published.every())
    assert "not comparable" in published.note(other) and "not comparable" not in published.note(exact)
    assert published.of("digits-w4", "gfpl") == [] == published.of("", "gfpl")
    both = published.of("gfpl-cifar10-w4", "gfpl")
    assert [(c.table, c.mean) for c in both] == [("table 1", 70.22), ("table 2", 70.22)]  # and no ablation


def test_defects_are_used_distinct_and_have_a_source():
    content = published._content()
    declared = {d["short"] for d in content["defects"].values()}
    assert len(declared) == len(content["defects"])
    assert all(d["what"] and d["source"] and "; " not in d["short"] for d in content["defects"].values())
    assert {s for c in published.every() for s in shorts(c)} == declared
    of_tables: dict[tuple[str, str], list] = {}
    for part in content["tables"]:  # no pattern is in vain in all parts of its table
        of_tables.setdefault((part["paper"], part["table"]), []).append(part)
    shared = [k for parts in of_tables.values() for part in parts for k in part["known"]]
    for known in shared:
        blocks = [b for parts in of_tables.values() for b in parts if known in b["known"]]
        rows = {line.split("|")[0].strip() for b in blocks for line in b["rows"].splitlines()}
        columns = {c["name"] for b in blocks for c in b["columns"]}
        for wanted, there in ((known.get("rows", []), rows), (known.get("columns", []), columns)):
            assert all(fnmatch.filter(there, pattern) for pattern in wanted), known


def test_the_figures_are_packaged():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "published.yaml" in project["tool"]["setuptools"]["package-data"]["fedtune.studies"]
