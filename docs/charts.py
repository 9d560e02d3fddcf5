"""The pictures of results: tables of analysis/results, runs of analysis/example, and tables of the pages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from drawing import Picture
from scipy import stats

from fedtune.analysis.twins import of_their_own
from fedtune.core import statistics

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "analysis" / "results"
ROW = 17  # the height of a list's line
Ticks = Iterable[float]


class Axis(NamedTuple):
    """Where values from low to high lie, from start to end of a picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


@cache
def called(algorithm: str) -> str:
    """An algorithm as its paper writes it: what its file begins with."""
    found = re.match(r'"""([^:]+):', (ROOT / "trainables" / f"{algorithm}.py").read_text())
    assert found, algorithm
    return found[1]


@cache
def measured(study: str = "tuned-few") -> pd.DataFrame:
    """A field by algorithm, in percent, the best first: those without a diverged run, and none of them twice."""
    frame = pd.read_csv(RESULTS / f"{study}.csv").set_index("algorithm")
    frame = frame.loc[of_their_own(frame[["default"]].T)].dropna(subset=["gain"])
    numbers = ["default", "tuned", "gain", "all", "foreign"]
    return frame[[*numbers, *(f"{n}_half" for n in numbers)]] * 100


def example(run: str) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """A kept run: its trials, its rounds, and its record."""
    folder = ROOT / "analysis" / "example" / run
    tables = [pd.read_parquet(folder / f"{table}.parquet") for table in ("trials", "rounds")]
    return tables[0], tables[1], json.loads((folder / "run.json").read_text())


def page_table(page: str, first: str) -> tuple[list[str], list[list[str]]]:
    """The table on a page whose head begins with `first`: the rest of its head, and its rows."""
    head, _, *lines = (ROOT / "docs" / page).read_text().split(f"\n| {first} |")[1].split("\n\n")[0].splitlines()
    return [c.strip() for c in head.strip("| ").split("|")], [
        [c.strip() for c in line.strip().strip("|").split("|")] for line in lines
    ]


def across(p: Picture, x: Axis, ticks: Ticks, top: float, bottom: float, words: str = "", unit: str = "") -> None:
    """The scale of a horizontal axis: lines from top to bottom, numbers below, and what they are."""
    for tick in ticks:
        p.line([(x(tick), top), (x(tick), bottom)], "grid", 1)
        p.text(x(tick), bottom + 15, f"{tick:g}{unit}".replace("-", "−"), "note", "middle")
    p.text((x.start + x.end) / 2, bottom + 32, words, "note", "middle")


def up(p: Picture, y: Axis, ticks: Ticks, left: float, right: float, unit: str = "") -> None:
    """The scale of a vertical axis: lines from left to right, and numbers beside them."""
    for tick in ticks:
        p.line([(left, y(tick)), (right, y(tick))], "grid", 1)
        p.text(left - 6, y(tick) + 4, f"{tick:g}{unit}".replace("-", "−"), "note", "end")


def interval(p: Picture, x: Axis, y: float, mean: float, half: float, colour: str) -> None:
    """A mean with its interval, if that is known."""
    if not math.isnan(half):
        p.line([(x(mean - half), y), (x(mean + half), y)], colour, 2)
    p.dot(x(mean), y, colour)


def spread(p: Picture, x: float, y: Axis, mean: float, half: float, colour: str) -> None:
    """A mean with its interval, upright."""
    p.line([(x, y(mean - half)), (x, y(mean + half))], colour, 2)
    p.dot(x, y(mean), colour)


FLOOR = 90  # percent: what is below lies on it


def report() -> Picture:
    """What the default search found: the validation accuracy of 32 trials in the order in which they began, with the
    best so far; below, the test accuracy of the best and of the default configuration on five fresh seeds."""
    trials, _, record = example("default")
    final = pd.DataFrame(record["final"]).pivot(index="seed", columns="configuration", values="test_acc") * 100
    gain = statistics.paired(final["best"], final["default"])
    p = Picture(
        370, f"The default search: {len(trials)} trials of GFPL on digits",
        f"validation accuracy of each trial; at the bottom: below {FLOOR} %",
    )  # fmt: skip
    value = trials["last_val_acc"] * 100
    x, y = Axis(1, len(trials), 54, 472), Axis(FLOOR, 98, 205, 48)
    up(p, y, range(FLOOR, 99, 2), 44, 478, " %")
    best = value.where(trials["status"] == "finished").cummax().ffill()
    line = [(x(i + at), y(v)) for i, v in enumerate(best, 1) for at in (0, 1) if i + at <= len(trials)]
    p.line(line, "green", 2)
    for i, (accuracy, status) in enumerate(zip(value, trials["status"], strict=True), 1):
        done = status == "finished"
        p.dot(x(i), y(max(accuracy, FLOOR)), "blue" if done else "amber", 4, hollow=not done)
    p.text(x(1), 222, "first", "note", "middle")
    p.text(x(len(trials)) + 6, 222, "last", "note", "end")
    marks = [("blue", "finished"), ("amber", "ended early"), ("green", "best so far")]
    p.legend(222, marks, 100, ["ended early"])
    p.text(0, 256, f"Tuning gained {gain.mean:.2f} ± {gain.half:.2f} points", size=14, bold=True)
    p.text(0, 274, f"test accuracy on {len(final)} fresh seeds, mean with 95 % interval", "note")
    low, high = np.floor(final.min().min()) - 1, np.ceil(final.max().max()) + 1
    x = Axis(low, high, 70, 460)
    across(p, x, [t for t in range(int(low), int(high) + 1) if t % 2 == 0], 284, 350, unit=" %")
    for at, (which, colour) in zip((302, 330), (("default", "axis"), ("best", "blue")), strict=True):
        p.text(0, at + 4, which)
        for one in final[which]:
            p.dot(x(one), at + 8, colour, 3, opacity=0.5)
        interval(p, x, at, *statistics.mean(final[which]), colour)
    return p


def rungs() -> Picture:
    """Validation accuracy round by round of every trial of the default search: the weaker ones are
    stopped after round 20, and the others go on to round 30."""
    trials, rounds, record = example("default")
    (rung,) = record["rungs"]
    status = trials.set_index("trial")["status"]
    ended = (status == "stopped").sum()
    p = Picture(
        292,
        f"Round {rung} is a rung: {ended} of {len(trials)} trials stop there",
        "validation accuracy, a line for each trial",
    )
    x, y = Axis(1, rounds["round"].max(), 54, 470), Axis(0, 100, 235, 48)
    up(p, y, (0, 25, 50, 75, 100), 50, 474, " %")
    across(p, x, (1, 10, 20, 30), 48, 235, "round")
    apart = dict(list(rounds.groupby("trial")))
    for trial in status[status != "diverged"].sort_values(ascending=False).index:  # stopped ones below
        done = status[trial] == "finished"
        line = [(x(r), y(v * 100)) for r, v in zip(apart[trial]["round"], apart[trial]["val_acc"], strict=True)]
        p.line(line, "blue" if done else "amber", 1.2, opacity=0.6)
        if not done:
            p.dot(*line[-1], "amber", 3)
    p.line([(x(rung), 44), (x(rung), 235)], "ink", 1.5, "5 4")
    p.text(x(rung), 41, "rung", anchor="middle")
    p.legend(284, [("blue", "trained to the end"), ("amber", "stopped at the rung")], 110)
    return p


BESIDE = {"right": (8, 4, "start"), "left": (-8, 4, "end"), "above": (0, -9, "middle"), "below": (0, 18, "middle")}


def named(p: Picture, at: tuple[float, float], algorithm: str, side: str) -> None:
    """An algorithm's name on one side of its dot."""
    dx, dy, anchor = BESIDE[side]
    p.text(at[0] + dx, at[1] + dy, called(algorithm), anchor=anchor)


FIELD = {  # the named, and where names stand
    "dbe": "right", "fedavg": "left", "fedavgft": "right", "fedpft": "left", "fedsa": "right", "moon": "right",
    "pfedme": "right",
}  # fmt: skip


def field() -> Picture:
    """Test accuracy of every algorithm by default against that when tuned: tuning gains most for those that are weak by
    default."""
    frame = measured()
    tau = stats.kendalltau(frame["default"], frame["tuned"]).statistic
    p = Picture(
        352, f"{len(frame)} algorithms gain {frame['gain'].mean():.1f} points by tuning, on average",
        f"test accuracy, mean of nine runs on fresh seeds; τ of the two rankings is {tau:.2f}",
    )  # fmt: skip
    ticks = range(30, 100, 10)
    x, y = Axis(*_span(frame["default"]), 62, 450), Axis(*_span(frame["tuned"]), 300, 50)
    up(p, y, [t for t in ticks if y.low <= t <= y.high], 58, 474, " %")
    across(p, x, [t for t in ticks if x.low <= t <= x.high], 50, 300, "by default", " %")
    p.text(12, 175, "tuned", "note", "middle", turn=True)
    low, high = max(x.low, y.low), min(x.high, y.high)
    p.line([(x(low), y(low)), (x(high), y(high))], "axis", 1, "5 4")
    ends = {str(frame["default"].idxmax()): "above", str(frame["tuned"].idxmax()): "left"}
    for algorithm, row in frame.iterrows():
        at = x(row["default"]), y(row["tuned"])
        p.dot(*at, "blue", 4.5, opacity=0.8)
        if side := (ends | FIELD).get(str(algorithm)):
            named(p, at, str(algorithm), side)
    return p


def _span(values: pd.Series) -> tuple[float, float]:
    """From a multiple of five points below values to one above them."""
    return 5 * math.floor(values.min() / 5), 5 * math.ceil(values.max() / 5)


def tuned() -> Picture:
    """Test accuracy of every algorithm by default and when tuned, with 95 % intervals over three searches: most gain
    more by tuning than lies between neighbours in the ranking."""
    frame = measured()
    p = Picture(
        ROW * len(frame) + 108,
        f"{len(frame)} algorithms, each tuned by three searches",
        "test accuracy; tuned: mean of three searches with 95 % interval",
    )
    p.legend(54, [("axis", "default"), ("blue", "tuned")], hollow=["default"])
    low, high = _span(pd.concat([frame["default"], frame["tuned"]]))
    x, top = Axis(low, high, 108, 460), 62
    across(p, x, range(int(low), int(high) + 1, 10), top, top + ROW * len(frame), unit=" %")
    for i, (algorithm, row) in enumerate(frame.iterrows()):
        y = top + ROW * (i + 0.5)
        p.text(0, y + 4, called(str(algorithm)))
        p.line([(x(row["default"]), y), (x(row["tuned"]), y)], "axis", 1, opacity=0.6)
        p.dot(x(row["default"]), y, "axis", 3.5, hollow=True)
        half = min(row["tuned_half"], high - row["tuned"], row["tuned"] - low)
        interval(p, x, y, row["tuned"], half, "blue")
    p.text(281, p.height - 12, "Fashion-MNIST, 20 clients with few rows", "note", "middle")
    return p


LINES = {"fedavgft": "red", "gfpl": "amber", "fedproto": "pink", "fedavg": "axis", "local": "ink"}


def budget() -> Picture:
    """Validation accuracy of what searches have found by their number of trials, for the leader and five others: their
    order changes in the first trials, and all still gain after eight."""
    frame = pd.read_csv(RESULTS / "tuned-few-budget.csv")
    most = int(frame["trials"].max())
    leader = frame[(frame["trials"] == most) & (frame["rank"] == 1)]["algorithm"].iloc[0]
    lines = frame[frame["algorithm"].isin([leader, *LINES])].assign(score=frame["score"] * 100)
    p = Picture(310, "What a search has found, by its number of trials", "validation accuracy, mean of three searches")
    x, y = Axis(1, most, 58, 375, log=True), Axis(*_span(lines["score"]), 262, 50)
    up(p, y, range(int(y.low), int(y.high) + 1, 10), 50, 380, " %")
    across(p, x, [*(2**i for i in range(most.bit_length()) if 1.2 * 2**i < most), most], 50, 262, "trials, as begun")
    lowest = 0.0  # of the names so far, which must not cover each other
    last = lines[lines["trials"] == most].sort_values("score", ascending=False)
    for algorithm, end in zip(last["algorithm"], last["score"], strict=True):
        colour = LINES.get(algorithm, "blue")
        mine = lines[lines["algorithm"] == algorithm].sort_values("trials")
        p.line([(x(n), y(s)) for n, s in zip(mine["trials"], mine["score"], strict=True)], colour, 2)
        lowest = max(y(end) + 4, lowest + 15)
        p.text(388, lowest, called(algorithm), colour, bold=True)
    return p


NAMED = {  # and where a name stands
    "fedrep": "right", "fedavgft": "right", "feddyn": "right", "local": "below", "fedavg": "below", "fedproto": "above",
    "ditto": "right", "fedpft": "above", "fesem": "left", "fedbabu": "right",
}  # fmt: skip


def own_all() -> Picture:
    """Tuned accuracy on a client's own classes against that on all classes: the leader on one is not that on the other,
    models that know no foreign classes fail on the second, and shared models do about as well on both."""
    frame = measured()
    p = Picture(352, "Own classes and all classes are two questions", f"test accuracy of {len(frame)} tuned algorithms")
    p.legend(54, [("blue", "at most 1 % right on foreign classes"), ("red", "more")])
    x, y = Axis(*_span(frame["tuned"]), 62, 450), Axis(*_span(frame["all"]), 300, 66)
    up(p, y, range(int(y.low), int(y.high) + 1, 10), 58, 474, " %")
    across(p, x, range(int(x.low), int(x.high) + 1, 5), 66, 300, "on each client's own classes", " %")
    p.text(12, 183, "on all classes", "note", "middle", turn=True)
    for algorithm, row in frame.iterrows():
        at = x(row["tuned"]), y(row["all"])
        p.dot(*at, "blue" if row["foreign"] <= 1 else "red", 4.5, opacity=0.8)
        if side := NAMED.get(str(algorithm)):
            named(p, at, str(algorithm), side)
    return p


OWN = {"test_acc": "", "test_acc_all": ", all classes", "test_acc_foreign": ", foreign"}
VERDICTS = {"above": "blue", "below": "red", "no effect above 0.5 points": "green", "undecided here": "axis"}


def contrasts() -> Picture:
    """Differences that were asked for beforehand, with 95 % intervals and verdicts: most are
    undecided, and more are below than above."""
    frame = pd.read_csv(RESULTS / "tuned-few-contrasts.csv").dropna(subset=["difference"])
    p = Picture(
        ROW * len(frame) + 108,
        "What was asked beforehand, and what came out",
        "first less second algorithm, tuned alike; all were expected to be above 0",
    )
    p.legend(54, [("blue", "above"), ("red", "below"), ("green", "no effect"), ("axis", "undecided")])
    ends = (frame["difference"] - frame["half"]).min(), (frame["difference"] + frame["half"]).max()
    x, top = Axis(*_span(pd.Series(ends)), 196, 468), 62
    across(p, x, range(int(x.low), int(x.high) + 1, 5), top, top + ROW * len(frame), "points of test accuracy")
    p.line([(x(0), top), (x(0), top + ROW * len(frame))], "axis", 1.5)
    for i, row in enumerate(frame.sort_values("difference", ascending=False).itertuples()):
        y = top + ROW * (i + 0.5)
        p.text(0, y + 4, f"{called(row.one)} − {called(row.other)}{OWN[row.metric]}")
        interval(p, x, y, row.difference, row.half, VERDICTS[row.verdict])
    return p


def dose() -> Picture:
    """What GFPL's pseudo-features gain at three doses, with 95 % intervals: less against as many steps on own features
    than against none."""
    frame = pd.read_csv(RESULTS / "gfpl-few-contrasts.csv")
    p = Picture(
        268,
        "What pseudo-features gain, and over what",
        "points on own classes, few rows; mean of ten seeds with 95 % interval",
    )
    p.legend(54, [("blue", "six classes a client"), ("red", "eight")])
    y = Axis(-0.5, 1.6, 215, 66)
    panels = ("GFPL, dose {}", "GFPL w/o PFG", "over GFPL without them"), (
        "GFPL w/o DCS, dose {}", "Local with equal head steps, dose {}", "over as many own steps"
    )  # fmt: skip
    for (one, other, words), left in zip(panels, (44, 286), strict=True):
        up(p, y, (-0.5, 0, 0.5, 1, 1.5), left, left + 190)
        p.line([(left, y(0)), (left + 190, y(0))], "axis", 1.5)
        p.text(left + 95, 252, words, anchor="middle", bold=True)
        for i, at in enumerate((1, 10, 50)):
            x = left + 34 + 61 * i
            p.text(x, 232, f"dose {at}" if not i else f"{at}", "note", "middle")
            for setting, colour, dx in (("w̄ = 6", "blue", -7), ("w̄ = 8", "red", 7)):
                named = (frame["one"] == one.format(at)) & (frame["other"] == other.format(at))
                (row,) = frame[named & (frame["setting"] == setting)].itertuples()
                spread(p, x + dx, y, row.difference, row.half, colour)
    return p


def transfer() -> Picture:
    """Accuracy on classes that a client does not hold, by the dose of pseudo-features: up to 82 % with a frozen common
    body, 40 % with one that moves slowly, and none with a client's own features."""
    frame = pd.read_csv(RESULTS / "gfpl-common.csv").query("measure == 'foreign'")
    p = Picture(
        285, "Pseudo-features carry other clients' classes", "test accuracy on classes that a client does not hold"
    )
    x, y = (90, 200, 310), Axis(0, 100, 240, 48)
    up(p, y, (0, 25, 50, 75, 100), 46, 350, " %")
    lines = (
        ("GFPL", "frozen bodies", "blue", "frozen body"), ("GFPL", "bodies at a tenth", "red", "slow body"),
        ("Local with equal head steps", "frozen bodies", "axis", "own features"),
    )  # fmt: skip
    for row, body, colour, words in lines:
        found = [
            frame[(frame["row"] == f"{row}, dose {d}") & frame["setting"].str.endswith(body)].iloc[0]
            for d in (1, 10, 50)
        ]
        p.line([(at, y(f["ours"])) for at, f in zip(x, found, strict=True)], colour, 2)
        for at, f in zip(x, found, strict=True):
            spread(p, at, y, f["ours"], f["half"], colour)
        p.text(356, y(found[-1]["ours"]) + 4, words, colour if colour != "axis" else "note", bold=True)
    for at, d in zip(x, (1, 10, 50), strict=True):
        p.text(at, 260, str(d), "note", "middle")
    p.text(200, 279, "dose: passes over pseudo-features at an event", "note", "middle")
    return p


REGRET = {"TPE, ASHA": "blue", "random, none": "axis", "CMA-ES, ASHA": "red"}


def regret() -> Picture:
    """Regret of three search strategies against their budget on six tables, with 95 % intervals: the two that stop
    trials early leave less than plain random search, above all on FedAvg's tables."""
    p = Picture(
        470, "What a search leaves on the table", "regret in points, mean of 200 simulated searches with 95 % interval"
    )
    p.legend(54, [("blue", "TPE, ASHA: default"), ("red", "CMA-ES, ASHA"), ("axis", "random")])
    kept = pd.read_csv(RESULTS / "strategies.csv").set_index("strategy")
    for i, (table, rows) in enumerate(kept.groupby("table", sort=False)):
        left, top = 34 + 156 * (i % 3), 92 + 196 * (i // 3)
        most, ticks = (7.5, (0, 2, 4, 6)) if "FedAvg" in str(table) else (3, (0, 1, 2, 3))
        x, y = Axis(4, 32, left + 10, left + 116, log=True), Axis(0, most, top + 130, top)
        up(p, y, ticks, left, left + 122)
        p.text(left, top - 10, str(table), bold=True)
        budgets = (4, 8, 16, 32)
        for b in budgets:
            p.text(x(b), top + 146, f"{b}", "note", "middle")
        for strategy in reversed(REGRET):
            row = rows.loc[strategy]
            p.line([(x(b), y(row[f"regret_{b}"])) for b in budgets], REGRET[strategy], 2)
            for b in budgets:
                spread(p, x(b), y, row[f"regret_{b}"], row[f"half_{b}"], REGRET[strategy])
    p.text(240, 462, "budget, in trials that are trained to the end", "note", "middle")
    return p


def speed() -> Picture:
    """Milliseconds of a training step of 20 clients, for four nets and two sizes of mini-batch: a loop over clients
    takes longest, stacking them helps, and replaying a recorded step comes near the kernels alone."""
    _, rows = page_table("background/engine.md", "net")
    kinds = (("axis", "loop over clients"), ("amber", "stacked"), ("blue", "replayed"), ("green", "kernels"))
    p = Picture(24 * len(rows) + 112, "A step of twenty clients", "milliseconds on one core; further left is faster")
    p.legend(54, kinds)
    x, top = Axis(1.4, 160, 142, 470, log=True), 64
    across(p, x, (2, 5, 10, 20, 50, 100), top, top + 24 * len(rows), "milliseconds, on a logarithmic scale")
    for i, (net, batch, *figures) in enumerate(rows):
        y = top + 24 * (i + 0.5)
        p.text(0, y + 4, f"{net.split(',')[0]}, B = {batch}")
        values = [float(f) for f in figures[:4]]
        p.line([(x(min(values)), y), (x(max(values)), y)], "grid", 3)
        for value, (colour, _) in zip(values, kinds, strict=True):
            p.dot(x(value), y, colour, 5)
    return p


def who_holds_what() -> Picture:
    """Which client holds rows of which class in the default scenario: ten clients with six pieces of the digits each,
    so that nobody has all classes."""
    from fedtune.data import datasets
    from fedtune.experiment import partitioning
    from fedtune.experiment.scenarios import DEFAULT, SCENARIOS
    from fedtune.studies import partition_view

    scenario, data = SCENARIOS[DEFAULT], datasets.load("digits")
    counts = partition_view.counts(partitioning.partition(data, scenario, 0), data)
    rows = counts.pivot_table(index="class", columns="client", values="rows", aggfunc="sum").to_numpy()
    p = Picture(358, "Who holds what", f"{DEFAULT}: a circle's area is how many rows of a class a client has")
    x, y = Axis(0, len(rows.T) - 1, 62, 456), Axis(0, len(rows) - 1, 62, 304)
    for c in range(len(rows)):
        p.line([(38, y(c)), (478, y(c))], "grid", 1)
        p.text(26, y(c) + 4, f"{c}", "note", "end")
    for k in range(len(rows.T)):
        p.text(x(k), 336, f"{k}", "note", "middle")
        for c in np.flatnonzero(rows[:, k]):
            p.dot(x(k), y(int(c)), "blue", 13 * np.sqrt(rows[c, k] / rows.max()), opacity=0.85)
    p.text(259, 353, "client", "note", "middle")
    p.text(10, 183, "class", "note", "middle", turn=True)
    return p


def asha() -> Picture:
    """Four workers over time in a simulated search: most trials end at the first rung after three rounds, few reach the
    second, and those that are left train to the end."""
    import optuna

    from fedtune.analysis.simulation import tabulated
    from fedtune.analysis.simulation.simulated_search import SimulatedSearch
    from fedtune.core.budget import Budget
    from fedtune.tuning import schedulers, searchers

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # or it says that a study was made
    table = tabulated.read(RESULTS / "tables" / "fedavg-digits-shards.parquet")
    space, slots = table.space(), 4
    judge = schedulers.scheduler("asha", Budget("rounds", table.rounds), table.grace, space)
    search = SimulatedSearch(
        searcher=searchers.searcher("random", space, [table.first()], [{}], 0, "asha"),  # type: ignore[arg-type]
        scheduler=judge, curve=lambda config: table.curve(config, [0]), rounds=table.rounds, trials=27, slots=slots,  # type: ignore[arg-type]
    )  # fmt: skip
    seen = pd.DataFrame(list(search.run()))
    ends = seen.groupby("trial").last()
    marks = {"stopped": "amber", "finished": "blue", "diverged": "red"}
    spent, whole = int(ends["round"].sum()), table.rounds * len(ends)
    p = Picture(
        250,
        f"ASHA spends {spent} rounds where {whole} would be full training",
        f"{len(ends)} trials on {slots} workers; a bar is a trial, and the number its rounds",
    )
    x = Axis(0, seen["clock"].max(), 62, 474)
    across(p, x, range(0, int(seen["clock"].max()) + 1, 20), 48, 48 + 36 * slots, "time, in rounds")
    free = [0.0] * slots
    for trial in (
        ends.sort_values("clock").assign(began=lambda f: f["clock"] - f["round"]).sort_values(["began"]).itertuples()
    ):
        slot = min(range(slots), key=lambda s: (abs(free[s] - trial.began), s))
        free[slot] = trial.clock
        wide = x(trial.clock) - x(trial.began)
        p.box(x(trial.began) + 0.7, 52 + 36 * slot, wide - 1.4, 26, marks[trial.status], 0.3, marks[trial.status], 3)
        if wide > 11:
            p.text(x(trial.began) + wide / 2, 69 + 36 * slot, f"{trial.round}", anchor="middle")
    for slot in range(slots):
        p.text(0, 69 + 36 * slot, f"worker {slot + 1}", "note")
    counts = ends["status"].value_counts()
    p.legend(244, [(c, f"{counts[k]} {k}") for k, c in marks.items() if k in counts], 100)
    return p


def driver() -> Picture:
    """CPU milliseconds of a driver for a trial and for a result, and its memory, against the trials that have ended: a
    trial costs more the more there are, and memory grows fastest during the first 3,000."""
    rows = pd.read_csv(RESULTS / "driver-scale.csv")
    p = Picture(
        238, "What trials cost a driver", "1,000 simulated slots, TPE, ASHA, at most 27 rounds; blocks of 500 trials"
    )
    panels = (
        ("ms a trial", "ms a trial", 300, 100),
        ("ms a result", "ms a result", 40, 10),
        ("MB", "memory, MB", 1500, 500),
    )
    for i, (column, words, most, step) in enumerate(panels):
        left = 36 + 162 * i
        x, y = Axis(0, 10_000, left, left + 112), Axis(0, most, 196, 76)
        up(p, y, range(0, most + 1, step), left, left + 112)
        p.text(left, 62, words, bold=True)
        p.line([(x(row["trials"]), y(row[column])) for _, row in rows.iterrows()], "blue", 2)
        for tick in (0, 5_000, 10_000):
            p.text(x(tick), 212, f"{tick // 1000}", "note", "middle")
    p.text(246, 230, "thousand trials that have ended", "note", "middle")
    return p


PRICED = {  # lines of the picture of privacy
    "fedavg": "blue", "fedprox": "pink", "fedadam": "amber", "scaffold": "axis", "fedrep": "green", "fedbabu": "ink",
    "fedavgft": "red", "local": "note",
}  # fmt: skip


def price() -> Picture:
    """Test accuracy of tuned algorithms over ε, with training alone, which releases nothing, as a dashed line."""
    frame = pd.read_csv(RESULTS / "price-epsilon.csv")
    levels = sorted(frame["level"].unique())
    p = Picture(340, "What privacy costs", "test accuracy, mean of three searches with 95 % intervals")
    reach = pd.concat([frame["tuned"] - frame["half"], frame["tuned"] + frame["half"]])
    x, y = Axis(0, len(levels) - 1, 76, 350), Axis(*_span(100 * reach), 296, 50)
    up(p, y, range(int(y.low), int(y.high) + 1, 10), 50, 372, " %")
    lowest = 0.0  # of the names so far, which must not cover each other
    ends = frame[frame["level"] == levels[-1]].sort_values("tuned", ascending=False)["algorithm"]
    for i, algorithm in enumerate(ends):
        mine, colour = frame[frame["algorithm"] == algorithm].sort_values("level"), PRICED[algorithm]
        at = [x(levels.index(level)) + 4 * (i - len(ends) / 2) for level in mine["level"]]
        points = [*zip(at, (y(100 * v) for v in mine["tuned"]), strict=True)]
        p.line(points, colour, 2, "5 4" if algorithm == "local" else None)
        for place, mean, half in zip(at, mine["tuned"], mine["half"], strict=True):
            spread(p, place, y, 100 * mean, 100 * half, colour)
        lowest = max(points[-1][1] + 4, lowest + 15)
        p.text(388, lowest, called(algorithm), colour, bold=True)
    for i, level in enumerate(levels):
        p.text(x(i), 314, f"{level:g}".replace("inf", "∞"), "note", "middle")
    p.text(213, 332, "ε", "note", "middle")
    return p


def codecs() -> Picture:
    """Megabytes that all clients send until FedAvg with each codec has 90 % of the best accuracy, as bars with 95 %
    intervals; beside them the megabytes of both ways, and the accuracy after the last round."""
    frame = pd.read_csv(RESULTS / "price-bytes.csv").sort_values("up_mb")
    row, top = ROW * 1.4, 50
    under = "what clients send to 90 % of the best accuracy, with 95 % intervals"
    p = Picture(row * len(frame) + 60, "What accuracy costs in bytes", under)
    x = Axis(0, (frame["up_mb"] + frame["half"]).max(), 50, 200)
    for i, of in enumerate(frame.itertuples()):
        at, costs = top + row * i, f"{of.reached} of 3 searches get there"
        p.text(0, at + 13, of.algorithm.partition("=")[2].removesuffix("]") or "none", code=True)
        if of.reached == 3:
            p.box(x(0), at + 2, x(of.up_mb) - x(0), row - 8, "blue")
            p.line([(x(of.up_mb - of.half), at + 9), (x(of.up_mb + of.half), at + 9)], "amber", 2)
            costs = f"{of.up_mb:.3g} MB, both ways {of.comm_mb:.3g}"
        p.text(212, at + 13, f"{costs}; ends at {100 * of.val_acc:.1f} %", "note")
    return p


CHARTS: Sequence[Any] = (
    report, rungs, field, tuned, budget, own_all, contrasts, dose, transfer, regret, speed, who_holds_what,
    asha, driver, price, codecs,
)  # fmt: skip
