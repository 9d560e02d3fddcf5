"""What the pages say of the field, all algorithms tuned alike, is what the kept tables hold."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy import stats
from support import field
from support.field import called, cell, counts, difference, gains, larger, leaders, led, named, pair, significant
from support.results_page import RESULTS, ROOT, contrasts, listed, require, section, span

from fedtune.analysis.worth import by_seed
from fedtune.core import statistics
from fedtune.core.objectives import ACCURACY
from fedtune.core.statistics import interval, number
from fedtune.experiment import registry
from fedtune.studies.comparison import budgets, tables
from fedtune.studies.comparison.tables import LARGER, UNTOLD

STUDIES = ("tuned-few", "tuned-part")
FEW = field.read("tuned-few")
ASKED = yaml.safe_load((ROOT / "analysis" / "contrasts.yaml").read_text())


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES)
def test_the_kept_tables_are_those_of_the_kept_runs(study: str) -> None:
    runs = field.runs(study)
    kept = {kind: pd.read_csv(RESULTS / f"{study}{kind}.csv") for kind in ("", "-pairs", "-against")}
    compared = runs[~runs["algorithm"].str.endswith("-again")]
    made = tables.table(runs, {n: {} for n in kept[""]["algorithm"]}, {})
    other = ["published", *(c for c in made if c.startswith("search_") and c != "search_score")]
    found = {
        "": made.drop(columns=other),
        "-pairs": tables.pairs(compared, ACCURACY, 0.005),
        "-against": tables.against(compared, ["local", "fedavgft"], ACCURACY, 0.005),
    }
    for kind, frame in found.items():
        pd.testing.assert_frame_equal(frame, kept[kind][list(frame)], check_dtype=False, rtol=1e-9)


def test_the_setting_of_few_rows() -> None:
    trials = int(re.findall(r"--trials (\d+)", ASKED["tuned-few"]["command"])[0])
    more = int(FEW.budget["trials"].max()) - trials
    assert set(FEW.table.index) == {*registry.names()} - {"fedensemble", "fedbn"}
    assert (FEW.table["runs"] == 9).all() and (FEW.budget["searches"] == 3).all()
    text = section("## The field, tuned alike").partition(" ### ")[0]
    require(
        text,
        [
            "6 ± 1 classes, and 10 ± 2 training rows of each class",
            *setting(trials, more),
        ],
    )


def setting(trials: int, more: int) -> list[str]:
    defaults = FEW.runs[FEW.runs["configuration"] == "default"].drop_duplicates("algorithm")
    lr, momentum = (defaults[f"config/{name}"].value_counts(normalize=True) for name in ("lr", "momentum"))
    assert lr.iloc[0] > 0.5 and momentum.iloc[0] > 0.5
    return [
        f"{len(registry.names()) - 1} algorithms",
        f"{trials} trials",
        f"{more} more",
        f"the same learning rate ({lr.index[0]:g}) and momentum ({momentum.index[0]:g})",
    ]


def test_the_field_in_short() -> None:
    require(section("# What has been measured with fedtune?").partition(" Each row ")[0], in_short())


def in_short() -> list[str]:
    told, again, *_ = map(int, re.findall(r"\b\d+\b", earlier()[0]))
    *_, below, shared, _, untold = against_baselines()
    assert 2 * int(shared.split()[0]) == int(below.split()[0])  # half of them
    chosen, first = choices("chosen")["config/lr"], choices("default")["config/lr"]
    searched = (chosen != first).groupby("algorithm").any()
    ratio = (chosen / first)[[searched[name] for name, _ in chosen.index]].median()
    return [
        f"a learning rate of {first.mode()[0]:g}",
        f"{FEW.field['gain'].mean():.1f} points on average over {len(FEW.field)} of {len(FEW.table)} algorithms",
        f"{ratio:.1f} times the default",
        untold,
        f"{below.split()[0]} are below",
        f"Of {told} contrasts that were significant in an earlier study with one search, {again} are again",
        f"the other {told - again}",
    ]


def test_tuning_few_rows() -> None:
    require(section("### What tuning is worth"), worth())


def worth() -> list[str]:
    of, (default, tuned) = FEW.field, by_seed(FEW.runs)
    assert [*tuned.mean().sort_values(ascending=False).index] == [*of.index]
    gain, most = statistics.mean((tuned - default).mean(axis=1)), of["gain"].nlargest(3)
    assert (of["gain"] > 0).all() and {*most.index} == {*of["default"].nsmallest(3).index}
    taus, *agreed = field.rankings(FEW)
    shares = field.importance(FEW)
    chosen, first = (choices(which) for which in ("chosen", "default"))
    return [
        f"{len(of)} algorithms gain {interval(*gain, '.1f')} points on average",
        f"{of['gain'].median():.1f} in the median",
        f"Gains are largest for {gains(FEW, most)}",
        f"Without these three the mean is {of['gain'].drop(most.index).mean():.1f}",
        f"{(of['gain'] < of['gain_half']).sum()} intervals contain zero",
        f"from the best to the worst it is {np.ptp(of['default']):.1f} points by default and "
        f"{np.ptp(of['tuned']):.1f} tuned",
        f"from the best to the median {of['default'].max() - of['default'].median():.1f} and "
        f"{of['tuned'].max() - of['tuned'].median():.1f}",
        f"By default {led(of['default'], 3)} lead; when tuned, these have the places "
        f"{listed(str(of.index.get_loc(n) + 1) for n in of['default'].nlargest(3).index)}",
        f"Kendall's τ is {min(taus):.2f} to {max(taus):.2f} between the ranking by defaults and the tuned one",
        f"{stats.kendalltau(of['default'], of['tuned']).statistic:.2f} between the means over three",
        f"Between the tuned rankings of two searches it is {agreed[0]:.2f}",
        f"between those by defaults {agreed[1]:.2f}",
        f"{shares['all']} % of the importance",
        f"that search more it is {shares['all that search more']} %",
        f"in {(chosen['config/lr'] > first['config/lr']).mean():.0%}".replace("%", " %"),
    ]


def choices(which: str) -> pd.DataFrame:
    """The configurations that searches chose, or the default ones, by algorithm and search."""
    runs = FEW.runs[FEW.runs["algorithm"].isin(FEW.table.index)]
    of = runs[runs["chosen"] if which == "chosen" else runs["configuration"] == which]
    return of.drop_duplicates(["algorithm", "search"]).set_index(["algorithm", "search"]).filter(like="config/")


def test_who_leads_with_few_rows() -> None:
    require(section("### Who leads"), leads())


def leads() -> list[str]:
    of, pairs, best = FEW.field, counts(FEW.pairs), str(FEW.field.index[0])
    mine = counts(FEW.pairs.xs(best))
    size = FEW.pairs["difference"].abs().groupby(FEW.pairs["verdict"])
    assert not pairs["within"]
    assert {"fedrod", "gpfl", "fedas"} <= {*larger(FEW, "fedavgft", -1)}
    personal = of["foreign"] <= 1
    return [
        f"{led(of['tuned'], 5)} have the highest accuracy",
        f"{called(best)} is above {mine['above']} of the other {sum(mine.values())} by more than the margin",
        f"cannot be told from {mine['untold']}",
        f"Of all {len(FEW.pairs):,} pairs {pairs['above'] + pairs['below']} differ by more than the margin",
        f"{pairs['untold']} cannot be told",
        f"{(FEW.pairs['verdict'].eq(UNTOLD) & (FEW.pairs['p_holm'] < tables.LEVEL)).sum()} of these differ from zero",
        f"{pairs['diverged']} have a diverged run",
        f"half an interval is {FEW.pairs['half'].median():.1f} points in the median",
        f"The smallest difference that is called larger is {size.min()[LARGER]:.1f} points",
        f"the largest that cannot be told {size.max()[UNTOLD]:.1f}",
        *against_baselines(),
        f"On all classes {led(of['all'], 5)} have the highest accuracy",
        f"FedAvg has {of['all']['fedavg']:.1f}",
        f"The {personal.sum()} that classify at most 1 % of the rows of foreign classes correctly reach at most "
        f"{of['all'][personal].max():.1f}",
    ]


SHARED = 60  # percent of the rows of foreign classes: so much a model knows that all clients share


def against_baselines() -> list[str]:
    """How many are above and below Local and FedAvg-FT, and how many epochs FedAvg-FT adds."""
    local, tuned = (FEW.against.xs(b, level="other") for b in ("local", "fedavgft"))
    epochs = choices("chosen")["config/tune_epochs"].dropna().astype(int)
    shared = FEW.field["foreign"].reindex(larger(FEW, "fedavgft", -1)) > SHARED
    assert not larger(FEW, "fedavgft", 1)
    assert FEW.pairs["verdict"][("fedavgft", "local")] == LARGER
    return [
        f"Local ({FEW.field['tuned']['local']:.1f}) has {counts(local)['above']} algorithms above it "
        f"({named(larger(FEW, 'local', 1))}) and {counts(local)['below']} below",
        f"FedAvg-FT adds {listed(map(str, sorted(epochs['fedavgft'])))} epochs of fine-tuning to the twenty of "
        f"training, and FedBABU {listed(map(str, sorted(epochs['fedbabu'])))}",
        f"{counts(tuned)['below']} of {tuned['difference'].notna().sum()} tested algorithms are below",
        f"{shared.sum()} of these",
        f"more than {SHARED} %",
        f"{counts(tuned)['untold']} cannot be told from it",
    ]


def test_who_leads_at_which_budget() -> None:
    require(section("### At which budget"), budget())


def budget() -> list[str]:
    most = int(FEW.budget["trials"].max())
    last = FEW.budget[FEW.budget["trials"] == most].set_index("algorithm")
    ends = last["score"] * 100
    gained = 100 * FEW.budget.pivot(index="trials", columns="algorithm", values="score").mean(axis=1)
    assert budgets.settled(FEW.budget, ACCURACY) == most
    return [
        f"The leader is {leaders(FEW)} trials",
        f"After {most} trials {led(ends, 3)} have the highest means",
        f"The mean over all algorithms is {listed(f'{gained[n]:.1f}' for n in (*AFTER, most))} % "
        f"after {listed(map(str, (*AFTER, most)))} trials",
    ]


AFTER = 1, 2, 4, 8, 12  # trials


def test_what_was_asked_beforehand_of_few_rows() -> None:
    require(section("### What was asked beforehand"), asked())


def asked() -> list[str]:
    rows, before = FEW.contrasts, field.EARLIER.query("study == 'field-few'").set_index(["one", "other", "metric"])
    other, metric = (rows.index.get_level_values(n) for n in ("other", "metric"))
    of = {
        "own classes, against FedAvg-FT": (metric == "test_acc") & (other == "fedavgft"),
        "own classes, the others": (metric == "test_acc") & (other != "fedavgft"),
        "all classes": metric == "test_acc_all",
        "foreign classes": metric == "test_acc_foreign",
    }
    drift, proto = (
        rows.loc[key] for key in (("feddyn", "fedavg", "test_acc_all"), ("fedproto", "fedavgft", "test_acc"))
    )
    return [
        f"{len(rows)} contrasts",
        f"{len(before)} were on the list of an earlier study of this setting",
        f"for {before['difference'].notna().sum()} of them the outcome was known",
        *(
            f"| {what} | {some.sum()} | {' | '.join(str((rows['verdict'][some] == v).sum()) for v in VERDICTS)} |"
            for what, some in of.items()
        ),
        f"FedDyn − FedAvg is {difference(drift)} points on all classes, with a corrected p of "
        f"{number(drift['p_holm'], '.2f')}",
        f"FedProto − FedAvg-FT is {difference(proto)} on own classes, with one of {number(proto['p_holm'], '.5f')}",
    ]


VERDICTS = "above", "below", "no effect above 0.5 points", "undecided here", "diverged on a seed"


def test_what_is_left_of_the_earlier_verdicts() -> None:
    require(section("### What is left of the earlier verdicts"), earlier())


def earlier() -> list[str]:
    before = {study: of.set_index(["one", "other", "metric"]) for study, of in field.EARLIER.groupby("study")}
    few, many = before["field-few"], before["field-dir0.3"]
    both, now = few.index[significant(few) & significant(many)], FEW.contrasts.loc[few.index]
    told = few.index[significant(few)]
    kept = few["verdict"][told] == now["verdict"][told]
    turned = [key for key in told if few["difference"][key] * now["difference"][key] < 0]
    nominal = now.loc[told].query("p < 0.05").index
    assert (few["difference"][nominal] * now["difference"][nominal] > 0).all()
    moved = (now["difference"] - few["difference"]).dropna().xs("test_acc", level="metric")
    of_ft = moved[["fedavgft" in key for key in moved.index]].drop(("fedbabu", "fedavgft"))
    sign = of_ft * [1 if one == "fedavgft" else -1 for one, _ in of_ft.index]
    rest = moved.drop([*of_ft.index, ("fedbabu", "fedavgft")]).abs()
    assert not (significant(now) & (few["difference"] * now["difference"] < 0)).any()  # none is reversed
    again = [contrasts(name)["difference"].loc[("fedavgft", "local")].item() for name in AGAIN]
    babu = choices("chosen").loc["fedbabu"]
    assert (babu["config/tune"] == "head").all()
    return [
        f"Of the {len(told)} significant contrasts of few rows {kept.sum()} are significant again",
        f"{(~kept).sum() - len(turned)} keep their sign without being significant",
        f"{len(turned)} change it ({listed(f'{called(a)} − {called(b)}' for a, b, _ in turned)})",
        f"{len(nominal)} of the {len(told)} have p < 5 % before the correction",
        f"half an interval was {few['half'].median():.1f} points in the median, and is {now['half'].median():.1f}",
        f"The correction was for {few['difference'].notna().sum()} contrasts, and is for "
        f"{FEW.contrasts['difference'].notna().sum()}",
        f"The {len(of_ft)} contrasts with it on own classes, but for FedBABU's, moved by {sign.min():.1f} to "
        f"{sign.max():.1f} points in its favour",
        f"The {len(rest)} others on own classes moved by at most {rest.max():.1f}",
        f"it leads Local by {listed(f'{points:.1f}' for points in again)} points",
        f"rates of at most {babu['config/tune_lr'].max():.5f}",
        f"which of its {significant(many).sum()} verdicts hold",
        f"of the {len(both)} contrasts that were significant in both earlier settings, "
        f"{(few['difference'][both] * many['difference'][both] < 0).sum()} differ in sign",
        *(
            f"| {pair(key)} | {cell(few.loc[key])} | {cell(many.loc[key])} | {cell(now.loc[key])} |"
            for key in few.index
        ),
    ]


@pytest.mark.long
def test_how_far_to_trust_it() -> None:
    require(section("### How far to trust this"), trust())


def trust() -> list[str]:
    runs = {name: field.runs(name) for name in ("tuned-few", *AGAIN)}
    rows = {name: tables.control(of, ["fedavg", "fedavg-again"], ACCURACY, 0.005).iloc[0] for name, of in runs.items()}
    twin = tables.control(runs["tuned-few"], ["fedavg", "fedbn"], ACCURACY, 0.005).iloc[0]
    ft = [contrasts(name).droplevel("setting").loc[("fedavgft", "local", "test_acc")] for name in runs]
    assert {of["verdict"] for of in ft} == {"above"}
    of_search = FEW.runs[FEW.runs["chosen"]].pivot(index=["search", "seed"], columns="algorithm", values="test_acc")
    assert (of_search["fedbn"] == of_search["fedavg"]).groupby("search").all().sum() == 1
    lost = FEW.table[FEW.table["gain"].isna()]
    assert (lost["tuned_diverged"] == 1).all()
    rest = 100 * FEW.runs[FEW.runs["chosen"]].groupby("algorithm")["test_acc"].mean()[lost.index]
    sure = FEW.contrasts[significant(FEW.contrasts)].index
    chosen, first = (choices(which).astype("string").fillna("") for which in ("chosen", "default"))
    draws = choices("chosen").groupby("search")["config/lr"].value_counts().groupby("search").max()
    assert min(statistics.holm([alone(*key) for key in FEW.contrasts.dropna(subset="p").index])) > tables.LEVEL
    assert (chosen.loc["fedgen"] == first.loc["fedgen"]).all(axis=1).sum() == 2
    return [
        *(
            f"| {what} | {in_points(row)} | {number(row['p'], '.2f')} | {row['verdict']} |"
            for what, row in zip(CONTROLS, (rows["tuned-few"], twin, *(rows[a] for a in AGAIN)), strict=True)
        ),
        f"by {listed(difference(of).removeprefix('+') for of in ft)} points",
        f"called different from itself in {span(field.ONE_SEARCH)} % of comparisons, at {100 * tables.LEVEL:g} %",
        f"in {span(field.THREE_SEARCHES)} %",
        f"{span(field.AMONG_EQUALS[1])} % had a corrected p < {100 * tables.LEVEL:g} %",
        f"{span(field.AMONG_EQUALS[2])} % called a difference larger than half a point",
        f"on few rows, two points were found in {field.FOUND_ON_FEW:.0f} %",
        f"here there are {len(FEW.table)}",
        f"Of the {len(sure)} significant contrasts {sum(alone(*key) < tables.LEVEL for key in sure)} have p < "
        f"{100 * tables.LEVEL:g} % by a paired t test over their own three searches alone",
        f"{len(lost)} algorithms have no tuned figure",
        f"The other {int(FEW.table['runs'].iloc[0]) - 1} runs have the means {led(rest, len(rest))}",
        f"in {(chosen == first).all(axis=1).sum()} of {len(chosen)} searches the default was chosen",
        f"In the three searches {listed(map(str, sorted(draws)))} algorithms chose the very same learning rate",
    ]


def alone(one: str, other: str, metric: str) -> float:
    """p of a contrast by a paired t test over its searches, which shares no variance with others."""
    runs = FEW.runs[FEW.runs["chosen"]].groupby(["algorithm", "search"])[metric].mean()
    return float(stats.ttest_rel(runs[one], runs[other]).pvalue)


AGAIN = "again-1000", "again-2000"
CONTROLS = (
    "FedAvg's control − FedAvg",
    "FedBN − FedAvg, which it is here",
    "FedAvg's control − FedAvg, from seed 1000 on",
    "FedAvg's control − FedAvg, from seed 2000 on",
)


def in_points(row: pd.Series) -> str:
    """A difference of accuracies, in points."""
    return interval(100 * row["difference"], 100 * row["half"], "+.1f")
