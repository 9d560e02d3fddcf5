"""What the page of results says of many clients, of which few take part, is what the kept tables hold."""

from __future__ import annotations

import re

import numpy as np
import yaml
from support import field
from support.field import cell, counts, difference, gains, larger, leaders, led, named, pair, significant
from support.results_page import ROOT, listed, require, section

from fedtune.analysis.papers.worth import by_seed
from fedtune.core import statistics
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import interval, number
from fedtune.studies.comparison import tables
from fedtune.studies.comparison.tables import LARGER

PART = field.read("tuned-part")
COMMAND = yaml.safe_load((ROOT / "analysis" / "contrasts.yaml").read_text())["tuned-part"]["command"]
MANY = field.EARLIER.query("study == 'field-dir0.3'").set_index(["one", "other", "metric"])  # one search
KEYS = [key for key in MANY.index if key in PART.contrasts.index]
HEADING = "## Many clients, of which few take part"


def asked(option: str) -> str:
    [value] = re.findall(rf"--{option} (\S+)", COMMAND)
    return value


def test_the_setting() -> None:
    assert not PART.table["gain"].isna().any(), "the page says that no run diverged"
    assert (PART.table["runs"] == 9).all() and (PART.budget["searches"] == 3).all()
    assert set(PART.table.index) == {n for key in MANY.index[significant(MANY)] for n in key[:2]}
    require(section(HEADING).partition(" ### ")[0], setting())


def setting() -> list[str]:
    return [
        f"under Dirichlet({asked('scenario').removeprefix('fmnist-dir')})",
        f"{asked('clients')} clients",
        f"{float(asked('participation')) * int(asked('clients')):.0f} take part in each of {asked('rounds')} rounds",
        f"with {asked('local-steps')} mini-batches",
        f"The same {asked('eval-clients')} clients are scored",
        f"{asked('trials')} trials",
        f"{significant(MANY).sum()} contrasts",
    ]


def test_tuning() -> None:
    require(section("### Tuning with many clients"), worth())


def worth() -> list[str]:
    of, (default, tuned) = PART.field, by_seed(PART.runs)
    gain, most, least = (
        statistics.mean((tuned - default).mean(axis=1)),
        of["gain"].nlargest(3),
        of["gain"].nsmallest(3),
    )
    assert {*most.index} == {*of["default"].nsmallest(3).index}
    taus, *agreed = field.rankings(PART)
    assert agreed[0] < min(taus)
    config = PART.runs.filter(like="config/").astype("string").fillna("")
    mine = PART.runs["algorithm"] == "fedgen"
    first, chosen = (config[mine & of] for of in (PART.runs["configuration"] == "default", PART.runs["chosen"]))
    assert (chosen.to_numpy() == first.to_numpy()[:1]).all(axis=1).sum() == 2 * 3  # two searches, three seeds each
    assert {*PART.runs.loc[PART.runs["configuration"] == "default", "config/momentum"]} == {0.0}
    shares = field.importance(PART)
    ends = 100 * PART.budget.pivot(index="trials", columns="algorithm", values="score")
    return [
        f"the {len(of)} algorithms gain {interval(*gain, '.1f')} points on average",
        f"The gain is largest for {gains(PART, most)}",
        f"smallest for {gains(PART, least)}",
        f"{(of['gain'] < of['gain_half']).sum()} intervals contain zero",
        f"from the best to the worst it is {np.ptp(of['default']):.1f} points by default and "
        f"{np.ptp(of['tuned']):.1f} tuned",
        f"{min(taus):.2f} to {max(taus):.2f} in one search",
        f"Two tuned rankings agree by {agreed[0]:.2f}, and two by defaults by {agreed[1]:.2f}",
        f"{shares['all']} % of the importance",
        f"the leader is {leaders(PART)} trials",
        f"The mean over all algorithms is {listed(f'{v:.1f}' for v in ends.loc[[*AFTER]].mean(axis=1))} % "
        f"after {listed(map(str, AFTER))} trials",
    ]


AFTER = 1, 2, 4, 6  # trials


def test_who_leads() -> None:
    require(section("### Who leads with many clients"), leads())


def leads() -> list[str]:
    of, pairs = PART.field, counts(PART.pairs)
    above, below = larger(PART, "local", 1), larger(PART, "fedavgft", -1)
    assert not larger(PART, "local", -1) and not larger(PART, "fedavgft", 1)
    assert PART.pairs["verdict"][("fedavgft", "local")] == LARGER
    assert np.ptp(PART.pairs["half"]) < 1e-9, "variances are pooled"
    shared = [n for n in below if of["foreign"][n] > 50]
    assert [n for n in below if n not in shared] == ["fedproto", "gfpl"]
    smaller = PART.contrasts.query("verdict in ('above', 'below')")["difference"].abs().min()
    rows = tables.control(PART.runs, ["fedavg", "fedavg-again"], ACCURACY, 0.005).iloc[0]
    size = PART.pairs["difference"].abs().groupby(PART.pairs["verdict"]).min()
    return [
        f"{led(of['tuned'], 5)} have the highest accuracy on own classes",
        f"{led(of['all'], 5)} on all classes",
        f"{named([*above, 'fedavgft'])} are above Local ({of['tuned']['local']:.1f})",
        f"{named(below)} are below FedAvg-FT",
        f"Of all {len(PART.pairs)} pairs {pairs['above'] + pairs['below']} differ by more than the margin",
        f"{pairs['untold']} cannot be told",
        f"half an interval is {PART.pairs['half'].median():.1f} points for each pair",
        f"the smallest difference that is called larger is {size[LARGER]:.1f}",
        f"one of {smaller:.1f} has a verdict there",
        f"The control, FedAvg searched under a second name, differs from it by "
        f"{interval(100 * rows['difference'], 100 * rows['half'], '+.1f')} points (p = {number(rows['p'], '.2f')})",
    ]


def test_which_verdicts_of_one_search_hold() -> None:
    require(section("### Which verdicts of one search hold"), holding())


def holding() -> list[str]:
    few = field.read("tuned-few").contrasts
    now, told = PART.contrasts, MANY.index[significant(MANY)]
    before = MANY["difference"]
    kept = MANY["verdict"][told] == now["verdict"][told]
    turned = [key for key in told if before[key] * now["difference"][key] < 0]
    assert [key for key in turned if significant(now)[key]] == [("moon", "fedavg", "test_acc_all")]
    again = [key for key in told if kept[key]]
    moon = now.loc[("moon", "fedavg", "test_acc_all")]
    nominal = now.loc[told].query("p < 0.05").index
    both = [key for key in KEYS if significant(few)[key] and significant(now)[key]]
    assert all(few["difference"][key] * now["difference"][key] > 0 for key in both)
    return [
        f"Of the {len(told)} contrasts only {listed(map(pair, again))} is significant again",
        f"{(~kept).sum() - len(turned)} keep their sign without being significant, and {len(turned)} change it",
        f"MOON − FedAvg on all classes is {difference(moon)} points",
        f"where it was {difference(MANY.loc[('moon', 'fedavg', 'test_acc_all')])}",
        f"MOON is the weakest by default, too ({PART.field['default']['moon']:.1f} % on own classes)",
        f"{len(nominal)} of the {len(told)} have p < 5 % before the correction",
        f"half an interval was {MANY['half'][told].median():.1f} points in the median, and is "
        f"{now['half'][told].median():.1f}",
        f"{listed(map(pair, both))} are also significant with few rows, with the same signs",
        *(f"| {pair(key)} | {cell(MANY.loc[key])} | {cell(now.loc[key])} |" for key in KEYS),
    ]
