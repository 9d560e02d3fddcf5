"""What the papers printed: figures against FedProto's own table, the papers' prose and each other."""

import fnmatch
import re
import tomllib
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from fedtune.data import datasets
from fedtune.experiment import registry
from fedtune.experiment.scenarios import SCENARIOS
from fedtune.studies import published

# Tan et al., "FedProto", AAAI 2022, table 1: data set, method, test accuracy of 3, 4 and 5 classes a client
FEDPROTO = """
MNIST    Local 94.05±2.93 93.35±3.26 92.92±3.17
MNIST    FeSEM 95.26±3.48 97.06±2.72 96.31±2.41
MNIST    FedProx 96.26±2.89 96.40±3.33 95.65±3.38
MNIST    FedPer 95.57±2.96 96.44±2.62 95.55±3.13
MNIST    FedAvg 95.04±6.48 94.32±4.89 93.22±4.39
MNIST    FedRep 94.96±2.78 95.18±3.80 94.94±2.81
MNIST    FedProto 97.13±0.30 96.80±0.41 96.70±0.29
FEMNIST  Local 92.50±10.42 91.16±5.64 87.91±8.44
FEMNIST  FeSEM 93.39±6.75 91.06±6.43 89.61±7.89
FEMNIST  FedProx 94.53±5.33 90.71±6.24 91.33±7.32
FEMNIST  FedPer 93.47±5.44 90.22±7.63 87.73±9.64
FEMNIST  FedAvg 94.50±5.29 91.39±5.23 90.95±7.22
FEMNIST  FedRep 93.36±5.34 91.41±5.89 89.98±6.88
FEMNIST  FedProto 96.82±1.75 94.93±1.61 93.67±2.23
CIFAR10  Local 79.72±9.45 67.62±7.15 58.64±6.57
CIFAR10  FeSEM 80.19±3.31 76.40±3.23 74.17±3.51
CIFAR10  FedProx 83.25±2.44 79.20±1.31 76.19±2.23
CIFAR10  FedPer 84.38±4.58 78.73±4.59 76.21±4.27
CIFAR10  FedAvg 81.72±2.77 76.77±2.37 75.74±2.61
CIFAR10  FedRep 81.44±10.48 76.93±7.46 73.36±7.04
CIFAR10  FedProto 84.49±1.97 79.12±2.03 77.08±1.98
"""
MIXED_SPREADS = [1.60, 1.78, 1.33]  # of FedProto-mh on CIFAR10, in the same table

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


def mean(paper: str, name: str, row: str, column: str) -> float:
    return table(paper, name)[row, column].mean


def shorts(cell: published.Cell) -> set[str]:
    return {d.short for d in cell.defects}


def test_every_table_is_whole():
    frame = published.cells()
    assert list(frame) == list(published.COLUMNS)
    found = frame.groupby(["paper", "table"], sort=False)
    assert {key: (part["printed"].nunique(), part["column"].nunique()) for key, part in found} == SHAPES
    assert all(len(part) == np.prod(SHAPES[key]) for key, part in found)
    assert not frame.duplicated(["paper", "table", "printed", "column"]).any()
    assert frame["mean"].dtype == float and frame["spread"].dtype == float
    assert frame["measure"].isin(published.MEASURES).all()
    accuracies = frame[frame["measure"] == "accuracy"]
    assert accuracies["mean"].between(16, 99).all() and (accuracies["spread"].dropna() < 11).all()


def test_gfpls_baselines_are_fedprotos_and_marked_so():
    counted = {"copied from FedProto": 0, "FedProto's minus 12.00": 0, "FedProto's minus 7.00": 0}
    gfpl = table("GFPL", "table 1")
    for line in FEDPROTO.split("\n")[1:-1]:
        data, row, *figures = line.split()
        for ways, text in zip((3, 4, 5), figures, strict=True):
            theirs, spread = map(float, text.split("±"))
            cell = gfpl[row, f"{data}, w̄ = {ways}"]
            off = 7 if (data, row, ways) == ("CIFAR10", "Local", 5) else 12 if data == "CIFAR10" else 0
            assert cell.mean == pytest.approx(theirs - off, abs=1e-9) and cell.spread == spread, (line, ways)
            mark = f"FedProto's minus {off:.2f}" if off else "copied from FedProto"
            assert shorts(cell) & counted.keys() == {mark}
            counted[mark] += 1
    assert list(counted.values()) == [42, 20, 1]
    marked = [c for c in published.every() if shorts(c) & counted.keys()]
    assert len(marked) == 63  # and no others
    ours = [gfpl["GFPL", f"CIFAR10, w̄ = {w}"] for w in (3, 4, 5)]
    assert [c.spread for c in ours] == MIXED_SPREADS and all("± of FedProto-mh" in shorts(c) for c in ours)


def test_gfpls_claims_follow_from_its_cells():
    gains = [
        mean("GFPL", "table 1", "GFPL", f"CIFAR10, w̄ = {w}") - mean("GFPL", "table 1", "FedProto", f"CIFAR10, w̄ = {w}")
        for w in (3, 4, 5)
    ]
    assert round(max(gains), 2) == 3.64
    names = ("MNIST", "FEMNIST", "CIFAR10", "CIFAR100")
    assert [mean("GFPL", "table 1", "GFPL", f"{d}, rounds") for d in names] == [80, 110, 100, 80]
    assert [mean("GFPL", "table 1", "GFPL", f"{d}, parameters") for d in names] == [2, 2, 33, 20]
    assert [mean("GFPL", "table 1", "FedProto", f"{d}, parameters") for d in names] == [4, 4, 41, 41]
    order = ("GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL")
    for column in {c for _, c in table("GFPL", "table 2")}:
        values = [mean("GFPL", "table 2", row, column) for row in order]
        assert values == sorted(values) and len(set(values)) == 4
    for data in ("CIFAR10", "FEMNIST"):  # no part is local training, and the whole is table 1's row
        for part, whole in ((order[0], "Local"), ("GFPL", "GFPL")):
            a = table("GFPL", "table 2")[part, f"{data}, ŝ = 1"]
            b = table("GFPL", "table 1")[whole, f"{data}, w̄ = 4"]
            assert (a.mean, a.spread) == (b.mean, b.spread)
    local = table("GFPL", "table 1")["Local", "CIFAR100, w̄ = 4"]
    part = table("GFPL", "table 2")[order[0], "CIFAR100, ŝ = 1"]
    assert round(part.mean - local.mean, 2) == 1.00 and part.spread == local.spread
    ends = table("GFPL", "figure 3a")
    assert ends["GFPL", "MNIST, λ = 0"].mean == mean("GFPL", "table 1", "Local", "MNIST, w̄ = 3")
    assert ends["GFPL", "MNIST, λ = 2"].mean == mean("GFPL", "table 1", "GFPL", "MNIST, w̄ = 3")


def test_fedpas_claims_follow_from_its_cells():
    two = {k: c.mean for k, c in table("FedPA", "table II").items()}
    rivals = ("FedAvg", "FedProx", "FedEnsemble", "FedGen", "FedHKD")
    assert round(two["FedPA", "MNIST, α = 0.1"] - max(two[r, "MNIST, α = 0.1"] for r in rivals), 2) == 3.70
    over = [two["FedPA", f"EMNIST, α = {a}"] - two["FedAvg", f"EMNIST, α = {a}"] for a in ("0.1", "1")]
    assert [round(v) for v in over] == [8, 5]
    three = {k: c.mean for k, c in table("FedPA", "table III").items()}
    columns = [f"EMNIST, C = {c}" for c in ("0.1", "0.5", "0.8")]
    assert [round(three["FedPA", c] - three["FedAvg", c], 1) for c in columns] == [7.6, 7.0, 7.5]
    best = [max(three[r, c] for r in ("FedAvg", "FedGen", "FedHKD")) for c in columns]
    # 3.42, 1.55 and 2.14, in hundredths
    assert [round(100 * (three["FedPA", c] - b)) for c, b in zip(columns, best, strict=True)] == [342, 155, 214]
    four = {row: c.mean for (row, _), c in table("FedPA", "table IV").items()}
    assert round(four["L_ad, L_ge"] - four["L_ge"], 2) == 0.03
    assert round(four["L_ad, L_ge, L_po"] - four["L_ge, L_po"], 2) == 0.08
    five = {k: c.mean for k, c in table("FedPA", "table V").items()}
    for a in ("0.1", "0.4", "0.7", "1"):
        within = [five[f"round {t}", f"α = {a}, within classes"] for t in (0, 2, 3, 10)]
        between = [five[f"round {t}", f"α = {a}, between classes"] for t in (0, 2, 3, 10)]
        assert within == sorted(within, reverse=True) and between == sorted(between)
        assert (within[0], between[0]) == (27.898, 27.351)


def test_one_setting_with_three_values_says_so():
    for algo, values in (("fedpa", [78.25, 77.14, 78.93]), ("fedavg", [70.09, 70.13, 70.94])):
        found = published.of("fedpa-emnist-a0.1", algo)
        assert [c.mean for c in found] == values
        assert all("three values of one setting" in published.note(c) for c in found)
    assert [c.mean for c in published.of("fedpa-emnist-a0.1", "fedgen")] == [76.34, 75.59]


def test_fedgenps_winners_are_those_of_its_prose():
    wins = set()
    for name in ("table 3", "table 4", "table 5"):
        cells = table("FedGenP", name)
        rows = {row for row, _ in cells}
        for column in dict.fromkeys(c for _, c in cells):
            best = max(rows, key=lambda row, column=column, cells=cells: cells[row, column].mean)
            assert best in ("FedGen", "FedGenP")
            wins |= {column} if best == "FedGen" else set()
    # it loses where all training rows are dealt out, and with 60 percent of the clients
    ample = {f"{data}, α = {a}" for data in ("MNIST, 100 %, 20 active", "EMNIST, 100 %") for a in ("0.1", "1")}
    assert wins == ample | {"CelebA, r = 0.6"}
    five = table("FedGenP", "table 5")
    for r in ("0.2", "0.4", "0.6", "0.8", "1"):  # what its defect says: the spreads overlap everywhere
        a, b = five["FedGen", f"CelebA, r = {r}"], five["FedGenP", f"CelebA, r = {r}"]
        assert abs(a.mean - b.mean) < a.spread + b.spread and "within the ±" in shorts(a)
    six = [c.mean for c in table("FedGenP", "table 6").values()]
    assert six == sorted(six) and round(six[-1] - six[0], 2) == 0.17


def test_fedsas_claims_follow_from_its_cells():
    one, two, three = ({k: c.mean for k, c in table("FedSA", f"table {n}").items()} for n in (1, 2, 3))

    def most(cells: dict, rivals: tuple[str, ...]) -> float:
        columns = {c for _, c in cells}
        return round(max(cells["FedSA", c] - cells[r, c] for r, c in product(rivals, columns)), 2)

    rows = tuple(dict.fromkeys(r for r, _ in one if r != "FedSA"))
    assert len(rows) == 7 and all(one["FedSA", c] > one[r, c] for r, c in one if r != "FedSA")
    device = {k: v for k, v in one.items() if k[1] == "Cifar100, cross-device"}
    assert most(one, rows) == most(device, rows) == 6.29 and most(device, ("FedProto", "FedTGP")) == 3.96
    assert most(two, ("FedProto",)) == 19.37 and most(two, ("FedTGP",)) == 3.78
    same = {r: (two[r, "Cifar100, HtFE8"], three[r, "Cifar100, E = 1"]) for r in (*rows, "FedSA")}
    assert {r for r, (a, b) in same.items() if a != b} == {"FedDistill"} and same["FedDistill"] == (35.26, 35.24)
    for name, column in (("table 2", "Cifar100, HtFE8"), ("table 3", "Cifar100, E = 1")):
        assert "35.24 or 35.26" in shorts(table("FedSA", name)["FedDistill", column])
    assert "35.24 or 35.26" not in shorts(table("FedSA", "table 3")["FedDistill", "Cifar100, E = 10"])
    four = {row: c.mean for (row, _), c in table("FedSA", "table 4").items()}
    first = four["EMA and R"]
    assert round(first - two["FedProto", "Cifar100, HtFE8"], 2) == 13.23
    assert [round(v - first, 2) for v in four.values()] == [0, 3.28, 6.14]
    five = {column: c.mean for (_, column), c in table("FedSA", "table 5").items()}
    assert min(five.values()) == 33.26 == five["Cifar100, λ_CC = 0.1"]
    assert five["Cifar100, λ_M = 1"] == five["Cifar100, λ_CC = 1"] == max(five.values()) == four["all parts"]


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
        for name, what in cell.instead:
            other = SCENARIOS[name]
            assert what and (other.dataset != cell.dataset or other.skip_classes)


def test_rows_are_algorithms_of_ours_or_the_papers_words():
    frame = published.cells()
    rows = set(frame.loc[frame["measure"] == "accuracy", "row"])
    ours = rows & set(registry.names())
    others = (  # of other papers, which print no figures on these settings
        "apfl ccvr cfl dbe ditto fedadam fedala fedamp fedas fedavgft fedavgm fedbabu fedbn fedcac feddecorr "
        "feddyn fedgh fedktl fedlc fedmrl fednova fedntd fedfomo fedpac fedpft fedphp fedrod gpfl fedsam "
        "knnper moon perfedavg pfedme scaffold"
    )
    assert set(registry.names()) - ours == set(others.split())
    ablations = "GFPL w/o DCS and PFG|GFPL w/o DCS|GFPL w/o PFG|L_po|L_ge|L_ad, L_ge|L_ge, L_po|EMA and R"
    assert rows - ours == {*ablations.split("|"), "EMA, R, embedding and M"}
    assert set(frame["dataset"]) - set(datasets.names()) == {"femnist", ""}


def test_a_stand_in_is_no_target():
    (exact,), (other,) = published.of("gfpl-mnist-w4", "gfpl"), published.of("gfpl-fmnist-w4", "gfpl")
    assert exact.mean == other.mean == 98.01 and exact.text == "98.01 ± 0.32"
    assert not exact.stands_in and other.stands_in == "Fashion-MNIST for MNIST"
    assert "not comparable" in published.note(other) and "not comparable" not in published.note(exact)
    assert published.of("digits-w4", "gfpl") == [] == published.of("", "gfpl")
    both = published.of("gfpl-cifar10-w4", "gfpl")
    assert [(c.table, c.mean) for c in both] == [("table 1", 70.22), ("table 2", 70.22)]  # and no ablation


def test_notes_are_one_short_line():
    for cell in published.every():
        note = published.note(cell)
        assert "\n" not in note and len(note) < 140, note


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


def test_what_is_lost_is_listed_and_left_out():
    assert any("30.80" in what for what in published.illegible().values())
    assert not {30.80, 30.61} & {c.mean for c in published.every() if c.table == "table 4" and c.paper == "FedSA"}


def test_the_figures_are_packaged():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "published.yaml" in project["tool"]["setuptools"]["package-data"]["fedtune.studies"]
