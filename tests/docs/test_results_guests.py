"""What the page of results says of PFLlib's own code beside the built-in algorithms is what the kept tables hold."""

from __future__ import annotations

import re

import pandas as pd
import yaml
from support.field import called, difference
from support.results_page import RESULTS, ROOT, contrasts, require, section

from fedtune.core.statistics import interval, number

STUDY = yaml.safe_load((ROOT / "analysis" / "contrasts.yaml").read_text())["guests"]
GUESTS = "pfllib-fedavg", "fedavg", "pfllib-fedproto", "fedproto", "pfllib-ditto", "ditto"


def test_pfllibs_own_code_beside_ours() -> None:
    require(section("## PFLlib's own code beside ours"), said())


def said() -> list[str]:
    table = pd.read_csv(RESULTS / "guests.csv").set_index("algorithm")
    trials, rounds = (re.findall(rf"--{option} (\d+)", STUDY["command"])[0] for option in ("trials", "rounds"))
    rows = contrasts("guests").droplevel(["setting", "metric"])
    of = table.loc[["pfllib-fedproto", "fedproto"]]
    assert (of["gain"] == 0).all() and {*of["configuration"].str.count("lr = 0.005|lr = 0.01")} == {3}
    verdicts = rows["verdict"].to_dict()
    assert all(
        verdicts[f"{code}{name}", f"{code}fedavg"] == "above"
        for code in ("", "pfllib-")
        for name in ("ditto", "fedproto")
    )
    assert verdicts["pfllib-fedproto", "fedproto"] == "below"
    images = "4,800 of 70,000 images"
    assert images in STUDY["left_out"]
    rates = [of["configuration"][n].partition(",")[0].removeprefix("lr = ") for n in of.index]
    return [
        f"learning rate is {rates[0]} in PFLlib and {rates[1]} here",
        f"{images} of Fashion-MNIST",
        f"{trials} trials of {rounds} rounds",
        *(
            f"| {called(n)} | {' | '.join(percent(table.loc[n], what) for what in ('default', 'tuned', 'gain'))} |"
            for n in GUESTS
        ),
        *(
            f"| {called(c['one'])} − {called(c['other'])} | {difference(row)} | {number(row['p_holm'], '.2g')} "
            f"| {row['verdict']} |"
            for c in STUDY["contrasts"]
            for row in [rows.loc[(c["one"], c["other"])]]
        ),
    ]


def percent(row: pd.Series, what: str) -> str:
    """A mean with its interval, in percent."""
    return interval(100 * row[what], 100 * row[f"{what}_half"], "+.1f" if what == "gain" else ".1f")
