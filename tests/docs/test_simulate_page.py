"""Figures of the page on simulated searches are those of the kept tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedtune.commands import simulate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "background" / "simulate.md").read_text()
TABLES = ROOT / "analysis" / "results" / "tables"


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "name"), [("fedavg", "FedAvg"), ("fedproto", "FedProto")])
def test_an_algorithm_against_itself(algorithm: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the commands that the page names; the last three columns but those of small shifts."""
    rows = PAGE.split(f"| {name}, digits | 1 × 9 |")[1].splitlines()[:4]
    told = [re.findall(r"([\d.]+) %", row) for row in rows]
    found = []
    for words in ("--compare-searches 1 --fresh-seeds 9", "--choose-seeds 1,3 --compare-searches 1,3 --fresh-seeds 3"):
        table = str(TABLES / f"{algorithm}-digits-shards.parquet")
        fresh = str(TABLES / f"fresh-{algorithm}-digits-shards.parquet")
        assert simulate.main([table, "--against-itself", "--searches", "30", "--fresh", fresh, *words.split()]) == 0
        found += re.findall(r"^ +[13] +[39] .*%.*$", capsys.readouterr().out, re.M)
    of = [re.findall(r"([\d.]+)%", row) for row in found]  # no verdict, as it is, then the shifts
    assert len(of) == 5
    for said, (none, itself, *_, one, two) in zip(told, (of[0], of[1], of[2], of[4]), strict=True):
        assert said == [itself, none, f"{float(one):.0f}", f"{float(two):.0f}"]
