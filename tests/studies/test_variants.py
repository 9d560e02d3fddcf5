"""Variants: one algorithm that is compared several times, each time with values of its own."""

import pandas as pd
import pytest
from support.comparisons import compared

from fedtune.commands import compare
from fedtune.engine.simulation import train
from fedtune.experiment.experiment import Experiment
from fedtune.experiment.scenario import Scenario
from fedtune.runs.files import COMPARISON, RunFiles
from fedtune.studies.comparison import plan
from fedtune.studies.options import ComparisonOptions

SETTING = "--scenario digits-w4 --clients 4 --rounds 2 --trials 2 --baselines none --no-control --borrow none"


def test_a_variant_is_searched_beside_its_algorithm_with_its_values_fixed():
    contest = compared("--algos", "fedavg,fedavg[compress=topk,sent_share=0.01],fedprox[lr=0.1]", *SETTING.split())
    short, slow = "fedavg[compress=topk,sent_share=0.01]", "fedprox[lr=0.1]"
    assert list(contest.plans) == ["fedavg", short, slow]
    assert contest.plans[short].folder.name == "fedavg-compress=topk-sent_share=0.01"
    fixed = {name: p.workload.pinned for name, p in contest.plans.items()}
    assert fixed == {"fedavg": {}, short: {"compress": "topk", "sent_share": 0.01}, slow: {"lr": 0.1}}
    assert "lr" in contest.plans[short].space.names and "lr" not in contest.plans[slow].space.names
    assert contest.plans[slow].workload.configuration({})["lr"] == 0.1


@pytest.mark.parametrize("algos", ["fedavg,fedavg[lr=0.1]", "fedavg[lr=0.1],fedavg[lr=0.2]"])
def test_what_is_recorded_makes_the_same_comparison_and_calls_no_variant_s_value_the_setting_s(algos):
    contest = compared("--algos", algos, *SETTING.split(), "--set", "momentum=0.5")
    record = contest.to_record()
    assert record["options"]["algos"] == algos and record["pinned"] == {"momentum": 0.5}
    assert (
        record["scenario"]
        == compared("--algos", "fedavg,local", *SETTING.split(), "--set", "momentum=0.5").to_record()["scenario"]
    )
    again = plan.make(ComparisonOptions.from_record(record), contest.folder)
    assert list(again.plans) == list(contest.plans) == algos.split(",")
    for name, p in again.plans.items():
        first = contest.plans[name]
        assert p.workload.configuration({}) == first.workload.configuration({}) and p.space.text() == first.space.text()
        assert (p.folder, p.selecting) == (first.folder, first.selecting)


@pytest.mark.usefixtures("one_ray")
def test_each_variant_is_trained_with_its_own_values(tmp_path):
    """Their searched values may be the same: a run of one must not stand for a run of the other."""
    slow, fast = (f"fedavg[lr={lr},momentum=0.0,local_epochs=1]" for lr in ("0.001", "0.3"))
    arguments = "--vary participation=0.5..1 --searches 1 --seeds 1 --choose-seeds 1 --top-k 1 --name v"
    words = [*SETTING.split(), *arguments.split(), "--no-dashboard", "--storage-path", str(tmp_path)]
    assert compare.main(["--algos", f"{slow},{fast}", *words]) == 0
    runs = pd.read_parquet(RunFiles(tmp_path / "v", COMPARISON).evaluations_file)
    of_default = runs[runs["configuration"] == "default"].set_index("algorithm")
    for name, lr in ((slow, 0.001), (fast, 0.3)):
        pinned = {"lr": lr, "momentum": 0.0, "local_epochs": 1}
        experiment = Experiment(algorithm="fedavg", scenario=Scenario(clients=4, rounds=2), pinned=pinned)
        *_, last = train(experiment.with_seed(int(of_default["seed"][name])), {})
        assert of_default["val_acc"][name] == last["val_acc"], name
    assert of_default["val_acc"].nunique() == 2
