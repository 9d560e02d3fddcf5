"""Figures of the page of results and of README are those of the kept tables and runs."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import yaml
from support import field
from support.results_page import RESULTS, ROOT, require, section, span

from fedtune.analysis import fedgenp_toy
from fedtune.core import statistics
from fedtune.core.objectives import Objective
from fedtune.core.statistics import interval
from fedtune.core.terminal import short
from fedtune.experiment.registry import names
from fedtune.tuning import verdict

README = " ".join((ROOT / "README.md").read_text().split())
FIRST = "local_epochs", "lr", "momentum", "lam", "components"  # of what the first search found
TOY = pd.read_csv(RESULTS / "fedgenp-toy.csv")


def ended(name: str, by: str = "tune_lr") -> pd.DataFrame:
    """Validation accuracy after the last round in %, by seed, a column for each value of a hyperparameter."""
    table = pd.read_parquet(RESULTS / "tables" / f"{name}.parquet")
    return 100 * table[table["round"] == 20].pivot(index="seed", columns=by, values="val_acc").astype(float)


def points(difference: statistics.Difference) -> str:
    return interval(difference.mean, difference.half, ".1f")


def test_a_number_without_a_table_is_found() -> None:
    text = "At dose 10 and w̄ = 6 CIFAR10 gains 1.5 ± 0.2 points (figure 4a), in 20 rounds."
    require(text, ["1.5 ± 0.2 points", "20 rounds"])
    with pytest.raises(AssertionError, match="no test recomputes.*20 rounds"):
        require(text, ["1.5 ± 0.2 points"])
    with pytest.raises(AssertionError, match="no test recomputes.*0.2 points"):
        require(text, ["1.5", "20 rounds"])
    with pytest.raises(AssertionError, match="not once on the page.*1.6"):
        require(text, ["1.6 ± 0.2 points", "20 rounds"])
    with pytest.raises(AssertionError, match="not once on the page.*dose 10"):
        require(f"{text} {text}", ["dose 10"])


def test_fedbabus_fine_tuning() -> None:
    everything, head, ft = (ended(x) for x in ("fedbabu-tune-all", "fedbabu-tune-head", "fedavgft-tune-all"))
    [tuned], [tuned_ft] = (
        pd.read_parquet(RESULTS / "tables" / f"{x}.parquet")[["lr", "momentum", "tune_epochs"]].drop_duplicates().values
        for x in ("fedbabu-tune-all", "fedavgft-tune-all")
    )
    own, own_ft = tuned[0], tuned_ft[0]  # the clients' rates
    rows = (("head", f"{own}, the clients'", head[own]), ("body and head", "0.001, the code's", everything[0.001]))
    rows += (("body and head", "0.03", everything[0.03]), ("body and head", f"{own}, the clients'", everything[own]))
    of = {rate: interval(*statistics.mean(ft[rate]), ".1f") for rate in ft}
    assert max(ft, key=lambda rate: ft[rate].mean()) == 0.03 and (tuned[2], tuned_ft[2]) == (10, 9)
    require(
        section("## FedBABU's fine-tuning, on ten seeds"),
        [
            f"(lr {own}, momentum {tuned[1]}, ten epochs of fine-tuning)",
            "Validation accuracy after 20 rounds",
            *(
                f"| {tuned} | {rate} | {interval(*statistics.mean(found), '.1f')} "
                f"| {found.isna().sum()} of {len(found)} |"
                for tuned, rate, found in rows
            ),
            f"the code's way is {points(statistics.paired(everything[0.001], head[own]))} points above the head alone",
            f"(lr {own_ft}, momentum {tuned_ft[1]}, nine epochs of fine-tuning body and head)",
            f"reaches {of[own_ft]} at the clients' rate, {of[0.03]} at 0.03 and {of[0.001]} at 0.001",
            f"is {points(statistics.paired(everything[0.001], ft[0.03]))} points above FedAvg-FT at the best",
        ],
    )


def test_fedgenps_toy() -> None:
    by = {key: 100 * x.set_index("seed")["accuracy"] for key, x in TOY.groupby(["algorithm", "rounds"])}
    ours, theirs = ({r: statistics.mean(by[a, r]) for r in (40, 100)} for a in ("fedgenp", "fedavg"))
    require(
        section("## FedGenP's toy"),
        [
            f"Over seeds {TOY['seed'].min()} to {TOY['seed'].max()} of the toy",
            f"FedGenP reaches {interval(*ours[40], '.1f')} % after 40 rounds",
            f"against FedAvg's {interval(*theirs[40], '.1f')}, and",
            f"{ours[100].mean:.1f} against {theirs[100].mean:.1f} after 100.",
            "The paper shows that 40 of its rounds match 100.",
            f"FedGenP is {points(statistics.paired(by['fedgenp', 100], by['fedgenp', 40]))} points lower after 40",
            "has not converged after 40 rounds",
        ],
    )
    assert theirs[100].mean - theirs[40].mean > 5


@pytest.mark.long
def test_the_toys_table_is_what_its_command_writes() -> None:
    kept = TOY[TOY["seed"] == 0].set_index(["algorithm", "rounds"])["accuracy"]
    for shot in fedgenp_toy.run([40, 100], 0):
        assert shot.accuracy == pytest.approx(kept[shot.algorithm, shot.rounds], abs=1 / 600)


def test_fedgenps_generators() -> None:
    found = ended("fedgenp-rectify", "rectify")
    lower = found[False] > found[True]
    require(
        section("## FedGenP's generators stay linear"),
        [
            "after 20 rounds, with defaults",
            f"validation accuracy is {points(statistics.paired(found[False], found[True]))} points lower",
            f"({found[True].mean():.1f} against {found[False].mean():.1f} %, lower on nine of ten seeds)",
        ],
    )
    assert (lower.sum(), len(lower)) == (9, 10)


def test_figures_of_the_first_pages() -> None:
    run = ROOT / "analysis" / "example" / "default"
    record, best = json.loads((run / "run.json").read_text()), yaml.safe_load((run / "best.yaml").read_text())
    found = [f"{name} = {short(best['hyperparameters'][name])}" for name in FIRST]
    gained = verdict.sentence(pd.DataFrame(record["final"]), Objective("val_acc", "max"))
    assert f"{gained}. Best configuration: {', '.join(found)}, …" in README
    assert f"{len(names())} algorithms are built in" in README
    assert f"{len(names())} built-in algorithms" in (ROOT / "docs" / "index.md").read_text()


def test_readmes_field() -> None:
    require(section("## What tuning is worth", ROOT / "README.md"), readmes_field())


def readmes_field() -> list[str]:
    table, of = field.read("tuned-few").table, field.read("tuned-few").field
    gain, apart = of["gain"].mean(), [of[which].max() - of[which].min() for which in ("default", "tuned")]
    taus, agreed, _ = field.rankings(field.read("tuned-few"))
    return [
        f"of the {len(of)} of {len(table)} algorithms of which no run diverged",
        f"{gain:.1f} points on average. The ranking",
        f"Kendall's τ is {min(taus):.2f} to {max(taus):.2f}",
        f"agree by {agreed:.2f}",
        f"in {span(field.ONE_SEARCH)} % of comparisons",
        f"{span(field.AMONG_EQUALS[1])} % find a difference at 5 %",
        f"{span(field.AMONG_EQUALS[2])} % one",
        f"Tuning gains {gain:.1f} points on average",
        f"from {apart[0]:.1f} points to {apart[1]:.1f}",
    ]
