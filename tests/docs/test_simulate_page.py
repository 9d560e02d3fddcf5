"""Figures of the page on simulated searches are those of the kept tables."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fedtune.analysis import simulate
from fedtune.analysis.simulation.against_itself import Procedure

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "background" / "simulate.md").read_text()
TABLES = ROOT / "analysis" / "results" / "tables"
OURS = {
    "FedAvg, digits": "fedavg-digits-shards",
    "FedProto, digits": "fedproto-digits-shards",
    "GFPL, digits": "gfpl-digits-shards",
    "FedAvg, few rows": "fedavg-gfpl-fmnist-few",
    "FedProto, few rows": "fedproto-gfpl-fmnist-few",
    "GFPL, few rows": "gfpl-gfpl-fmnist-few",
}


def told(question: str) -> dict[str, list[float]]:
    """The figures of each row of the table that follows these words."""
    table = PAGE.split(question)[1].partition("\n\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {name: [float(cell.removesuffix(" %")) for cell in cells] for name, *cells in rows}


FALSE = told("How often was the algorithm called different from itself?")
FOUND = told("How often was a difference of two points found?")


def test_the_default_keeps_its_level_on_every_table() -> None:
    assert FALSE.keys() == FOUND.keys() == OURS.keys()
    missed = [100 - row[1] for row in FOUND.values()]
    assert f"misses {min(missed):.0f} to {max(missed):.0f} % of differences of two points" in PAGE
    for found in FOUND.values():
        assert min(found) == found[2] and min(found[3:]) > max(found[1:3]) and found[4] >= found[3]
    assert max(max(row[3:]) for row in FALSE.values()) < 5  # 3 × 3, however its searches choose
    *cost, last = [Procedure(k, s).cost(32) for k, s in ((1, 9), (1, 3), (2, 3), (3, 3))]
    assert f"costs {', '.join(f'{c:g}' for c in (*cost, last))} and {last:g} trials of full length" in PAGE


def test_how_many_fresh_runs_diverged() -> None:
    runs, whole = 0, 0
    for name in OURS.values():
        table = pd.read_parquet(TABLES / f"fresh-{name}.parquet")
        names = [n for n in table if n not in ("round", "val_acc")]
        fresh = table[table["seed"] != table["seed"].min()]  # that one is the seed in common
        each = fresh.groupby(names)["val_acc"]
        runs, whole = runs + each.ngroups, whole + int((each.count() == table["round"].max()).sum())
    assert runs == whole and f"None of the {runs:,} runs on fresh seeds diverged" in PAGE


@pytest.mark.long
@pytest.mark.parametrize("name", OURS)
def test_an_algorithm_against_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the commands that the page names."""
    rows, reached = [], []
    for words in (
        "--compare-searches 1 --fresh-seeds 9",
        "--choose-seeds 1,3 --compare-searches 1,2,3 --fresh-seeds 3",
    ):
        files = [str(TABLES / f"{kind}{OURS[name]}.parquet") for kind in ("", "fresh-")]
        grace = ["--grace", "14"] * name.startswith("GFPL")
        line = [files[0], "--against-itself", "--searches", "30", "--fresh", files[1], *words.split(), *grace]
        assert simulate.main(line) == 0
        said = capsys.readouterr().out.replace("│", " ")
        rows += [re.findall(r"([\d.]+)%", row) for row in re.findall(r"^ +[123] +[39] .*%.*$", said, re.M)]
        reached += re.findall(r"what searches choose reaches ([\d.]+) % on fresh seeds", said)
    of = [[float(x) for x in row] for row in (rows[0], *rows[1:4], rows[6])]
    assert len(rows) == 7 and FALSE[name] == [row[1] for row in of]
    assert FOUND[name] == [row[-1] for row in of]
    none = [row[0] for row in of]  # what the page says of all tables: 15 to 42, 0.8 to 5.0, 0.1 to 3.0 %; 3 to 28 %
    assert 15 <= none[0] <= 42.5 and 0.8 <= none[3] <= 5 and 0.1 <= none[4] <= 3 and none[4] < none[3]
    assert 2.5 <= 100 * of[0][1] / (100 - none[0]) < 28.5
    one, three = map(float, reached[1:])
    assert abs(one - three) <= 0.065


EQUALS = told("The columns are the share of pairs with p < 5 %")


@pytest.mark.long
@pytest.mark.parametrize("where", ["digits", "few rows"])
def test_equals(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the commands that the page names."""
    names = [file for name, file in OURS.items() if name.endswith(where)]
    files = [[str(TABLES / f"{kind}{name}.parquet") for name in names] for kind in ("", "fresh-")]
    words = "--against-itself --searches 30 --compare-searches 2,3,5 --fresh-seeds 3 --choose-seeds 1,3 --shift 1,2"
    assert simulate.main([*files[0], *words.split(), "--fresh", *files[1]]) == 0
    rows = re.findall(r"^ +[235] +3 +[\d.]+% .*%.*$", capsys.readouterr().out.replace("│", " "), re.M)
    found = [[float(x) for x in re.findall(r"([\d.]+)%", row)[1:]] for row in rows]
    assert found == [of for name, of in EQUALS.items() if name.startswith(where)]
