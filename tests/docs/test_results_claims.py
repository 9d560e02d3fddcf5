"""What the page of results says of GFPL's claims is what the kept tables hold."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from support.results_page import RESULTS, listed, measured, require, section, span, told

from fedtune.studies.fresh_seeds import NEAR

FASHION, MNIST = BOTH = ("fashion-mnist", "mnist-5k")
HEADS = "", ", frame", ", sum"
FAILS, HOLDS, SMALLER, NO_EFFECT = "does not hold", "holds", "smaller than claimed", "no effect above 0.5 points"
PLAIN, NO_DUAL, NO_PSEUDO, GFPL = "GFPL w/o DCS and PFG", "GFPL w/o DCS", "GFPL w/o PFG", "GFPL"
CLAIMS = {data: pd.read_csv(RESULTS / f"gfpl-claims-{data}.csv").set_index("claim") for data in BOTH}
FILES = [f for data in BOTH for f in RESULTS.glob(f"gfpl-*-{data}.csv") if "claims" not in f.name]
KEPT = pd.concat(pd.read_csv(f).assign(figure=re.findall(r"-(\w+?\d)", f.name)[0]) for f in FILES)
KEPT[["data", "setting"]] = KEPT["setting"].str.split(", ", n=1, expand=True)
KEPT["varied"] = KEPT["setting"].str.split(" = ").str[0]
C8 = re.compile(
    r"([\d.]+) here; not as printed for MNIST \((.+?)\), as .+? CIFAR10 \((.+?)\), not .+? CIFAR100 \((.+?)\)"
)
DIFFERENCE = re.compile(r"(.+?): ([+−][\d.]+) ± ([\d.]+) (?:points|MB)(?: \(([+−][\d.]+) claimed\))?")


def means(figure: str, data: str, measure: str = "accuracy") -> pd.Series:
    """What was measured, by setting and row."""
    rows = KEPT.query("figure == @figure and data == @data and measure == @measure")
    return rows.set_index(["setting", "row"])["ours"]


def differences(data: str, claim: str) -> pd.DataFrame:
    """The differences that a claim was judged by, and the paper's, with the two digits that the table has."""
    found = [DIFFERENCE.fullmatch(part) for part in CLAIMS[data]["measured"][claim].split("; ")]
    rows = [(m[1], *(float((x or "nan").replace("−", "-")) for x in m.groups()[1:])) for m in found if m]
    assert len(rows) == len(found)
    return pd.DataFrame(rows, columns=["what", "difference", "half", "claimed"]).set_index("what")


def both(claim: str, form: str = "+.2f") -> str:
    """A claim's only difference, on Fashion-MNIST and on MNIST."""
    return told(pd.concat([differences(data, claim) for data in BOTH]), form)


def test_figures() -> None:
    require(section("## GFPL's claims"), [*runs(), *table_1(), *parts(), *beside_fedproto(), *costs()])


def runs() -> list[str]:
    few, costs, later = KEPT[KEPT["seeds"] != 10], KEPT["figure"] == "fig7", KEPT["varied"] == "t1"
    assert {*zip(few["figure"], few["varied"], few["data"], few["seeds"], strict=True)} == {
        *(("fig4", "ŵ", FASHION, 5), ("fig6", "S_C", FASHION, 5)),
        *(("fig7", varied, data, 3) for varied in ("n", "m", "w̄") for data in BOTH),
    }
    whole = (KEPT["figure"] == "table1") & (KEPT["data"] == MNIST)
    usual = KEPT[~(costs | later | whole)]
    (short,), (long,), (most,), (rounds,) = ({*x["rounds"]} for x in (KEPT[costs], KEPT[later], KEPT[whole], usual))
    return [
        f"three for the costs of figure 7 ({short} rounds)",
        f"use {rounds} of the paper's {' or '.join(map(str, sorted({*usual['whole']})))} rounds (figure 4c: {long})",
        f"table 1 on MNIST, which has all {most}.",
    ]


def table_1() -> list[str]:
    fashion, mnist = (means("table1", data) for data in BOTH)
    classes, order = ["w̄ = 3", "w̄ = 4", "w̄ = 5"], ["Local", "GFPL", "FedProto"]
    assert all([*found[w].sort_values().index] == order for found in (fashion, mnist) for w in classes)
    assert {CLAIMS[data]["verdict"][c] for data in BOTH for c in ("C9", "C10", "C11")} == {FAILS}
    every = {row: listed(f"{mnist[w][row]:.1f}" for w in classes) for row in order}
    c9, c10, f9, f10 = (differences(data, claim) for data in (MNIST, FASHION) for claim in ("C9", "C10"))
    [(converged, printed)] = re.findall(r"w̄ = 4: (\d+ ± \d+) \((\d+) printed\)", CLAIMS[MNIST]["measured"]["C11"])
    rounds, whole = KEPT.query("figure == 'table1' and data == @FASHION")[["rounds", "whole"]].iloc[0]
    return [
        f"after the {whole} rounds on MNIST. C9: GFPL is {told(c9, '.2f', -1)} points *below* FedProto at w̄ = 5",
        f"(CIFAR10's row claims {c9['claimed'].item():+.2f})",
        f"Local is {told(c10, '.2f', -1)} below FedProto at w̄ = 3 ({c10['claimed'].item():+.2f} claimed)",
        f"within {100 * (1 - NEAR):.0f} % of its final accuracy after {converged} rounds ({printed} printed)",
        f"GFPL is at {every['GFPL']} % with three, four and five classes",
        f"FedProto at {every['FedProto']}, Local at {every['Local']}.",
        f"On Fashion-MNIST, after {rounds} of the {whole}, the order is the same",
        f"(w̄ = 3: {', '.join(f'{row} {fashion[classes[0]][row]:.1f}' for row in order)})",
        f"C9 {told(f9)} and C10 {told(f10)}.",
    ]


def parts() -> list[str]:
    """λ, n, and what each part of GFPL adds."""
    verdict = pd.DataFrame({data: CLAIMS[data]["verdict"] for data in BOTH})
    assert {*verdict.loc["C1"]} == {SMALLER} and {*verdict.loc[[f"C2{h}" for h in HEADS]].stack()} == {NO_EFFECT}
    assert [{*verdict.loc[[f"C3{h}" for h in HEADS], data]} for data in BOTH] == [{SMALLER}, {FAILS}]
    fashion, own, frame, total = (differences(*x) for x in ((FASHION, "C3"), *((MNIST, f"C3{h}") for h in HEADS)))
    step = {s: f"ŝ = {s}: {GFPL} − {NO_PSEUDO}" for s in (1, 20)}  # beside the dual classifier
    alone = {s: f"ŝ = {s}: {NO_DUAL} − {PLAIN}" for s in (1, 20)}
    assert (own["half"] > abs(own["difference"])).where(lambda x: x).dropna().index.tolist() == [alone[20]]
    assert all(abs(total["difference"][x]) < total["half"][x] for x in step.values())
    printed = [f"{x:+.2f}" for x in fashion["claimed"].iloc[:3]]  # of ŝ = 1
    by_frame = [f"{differences(data, 'C1, frame')['difference'].item():.0f}" for data in BOTH]
    rounds, later = KEPT[KEPT["figure"] == "table2"]["rounds"].iloc[0], measured("gfpl-few")["rounds"].iloc[0]
    claimed = differences(MNIST, "C1")["claimed"].item()
    return [
        f"{both('C1')} points, *smaller than claimed* (the paper prints {claimed:+.2f})",
        f"so it gains {listed(by_frame)} points",
        f"the sum of both heads gains {both('C1, sum', '.2f')}.",
        f"(printed: {listed(printed)} on CIFAR10)",
        f"{span(fashion['difference'], '+.2f')} points with intervals of {span(fashion['half'], '.2f')}.",
        f"pseudo-features cost {told(own.loc[[step[1]]], '.2f', -1)} points (ŝ = 1)",
        f"and {told(own.loc[[step[20]]], '.2f', -1)} (ŝ = 20)",
        f"Without it they cost {told(own.loc[[alone[1]]], '.2f', -1)} (ŝ = 1)",
        f"no significant effect at ŝ = 20 ({told(own.loc[[alone[20]]])})",
        f"With the frame's head they gain {told(frame.loc[[step[1]]], '.2f')} beside the dual classifier at ŝ = 1",
        f"The {rounds}th round has an event",
        f"In {later} rounds of [the few-shot setting]",
    ]


def beside_fedproto() -> list[str]:
    """Figures 3c and 4a."""
    by_rows, by_rows_mnist = (differences(data, "fig. 3c") for data in BOTH)
    below = [[*(x["difference"] < -x["half"])] for x in (by_rows, by_rows_mnist)]
    assert below == [[False, True, True, True, True], [False, False, True, True, True]]  # 5, 10, 20, 60, 100
    spread = [differences(data, "fig. 4a") for data in BOTH]
    assert all((x["difference"] < -x["half"]).all() for x in spread)
    mnist = apart("fig3", MNIST, ["s̄ = 20", "s̄ = 60", "s̄ = 100"])
    fashion_classes, mnist_classes = (apart("fig4", data, ["ŵ = 0", "ŵ = 2", "ŵ = 3"]) for data in BOTH)
    return [
        f"below by {told(by_rows.iloc[1:], '.2f', -1)} points at s̄ = 10, 20, 60 and 100",
        f"At s̄ = 5 it does not differ significantly ({told(by_rows.iloc[:1])})",
        f"On MNIST it is below by {mnist} points at s̄ = 20, 60 and 100",
        f"At every ŵ it is below, by {fashion_classes} points and by {mnist_classes} points",
    ]


def apart(figure: str, data: str, settings: list[str]) -> str:
    """From the least to the most that GFPL is below FedProto in these settings."""
    of = means(figure, data).unstack().loc[settings]
    return span(of["FedProto"] - of["GFPL"])


def costs() -> list[str]:
    """Figures 4b, 4c, 6 and 7, and what is sent in figure 4a."""
    verdict = pd.DataFrame({data: CLAIMS[data]["verdict"] for data in BOTH})
    assert {*verdict.loc[["C4", "C5", "C6"]].stack()} == {NO_EFFECT} and [*verdict.loc["C7, n"]] == [HOLDS, FAILS]
    assert {*verdict.loc[["C7, m", "C7, w̄"]].stack()} == {HOLDS}
    saved, lower = [], []
    for data in BOTH:
        mb, accuracy, by_clients = means("fig6", data, "mb"), means("fig4", data), means("fig7", data, "mb")
        saved.append(f"{100 * (1 - mb['S_C = 300']['GFPL'] / mb['S_C = 0.1']['GFPL']):.0f}")
        lower.append(f"{accuracy['S_T = 1']['GFPL'] - accuracy['S_T = 20']['GFPL']:.1f}")
        m5, m20 = (by_clients[f"m = {m}"]["GFPL"] for m in (5, 20))
        assert m20 / m5 == pytest.approx(
            21 / 6, rel=1e-3
        )  # nothing is merged: a client's go up, and all clients' come down
    [(share, mnist, cifar10, cifar100)] = {C8.findall(CLAIMS[data]["measured"]["C8"])[0] for data in BOTH}
    printed = dict(re.findall(r"(\d+/\d+) \((\w+)\)", CLAIMS[MNIST]["what"]["C8"]))
    of = {data: x.split("/") for x, data in printed.items()}
    times = [float(x) for data in BOTH for x in re.findall(r"\d+\.\d+", CLAIMS[data]["measured"]["C8b"])]
    return [
        f"S_T = 20 is {listed(lower)} points lower than S_T = 1",
        f"saves {listed(saved)} % of the traffic",
        f"GFPL's upload is {share} of FedProto's in every setting",
        f"for CIFAR10 ({of['CIFAR10'][0]} of {of['CIFAR10'][1]} thousand, {cifar10} by rounding)",
        f"not for MNIST ({of['MNIST'][0]} of {of['MNIST'][1]}, at most {mnist.split()[-1]})",
        f"or CIFAR100 ({of['CIFAR100'][0]} of {of['CIFAR100'][1]})",
        f"GFPL's traffic is {span(times)} times FedProto's",
    ]
