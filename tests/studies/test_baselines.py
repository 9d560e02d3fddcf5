"""Local and FedAvg-FT join a comparison, with tests of their own; own, all and foreign classes; values near an edge."""

import itertools

import pandas as pd
import pytest
from scipy import stats
from support.comparisons import compared
from support.evaluations import evaluated, spent

from fedtune.core import statistics
from fedtune.studies.comparison import plan as comparison_plan
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text
from fedtune.studies.options import ComparisonOptions

SPENT = spent(("gfpl", "fedper", "local"))
NOISE = {"gfpl": (0.01, 0.03, 0.02), "fedper": (0.02, 0.02, 0.01), "local": (0.0, 0.01, 0.03)}


def planned(words):
    return compared("--searches", "1", *words.split())  # one has no control


def evaluations():
    """Three algorithms on three seeds; local cannot answer what it does not hold."""
    rows = []
    for name, own, foreign in (("gfpl", 0.8, 0.1), ("fedper", 0.7, 0.2), ("local", 0.6, 0.0)):
        for configuration, (seed, noise) in itertools.product(("default", "top 1"), enumerate(NOISE[name])):
            tested = {"test_acc": own + noise, "test_acc_all": own / 2 + noise, "test_acc_foreign": foreign + noise}
            more = {"score": 0.9, "val_acc": own, "config/lr": 0.0011 if name == "gfpl" else 0.02}
            rows.append(evaluated(name, configuration, seed, **tested, **more))
    return pd.DataFrame(rows)


def test_each_is_tested_against_each_baseline_and_corrected_for_these_tests_alone():
    found = comparison_tables.against(evaluations(), ["local"]).set_index("algorithm")
    assert list(found.index) == ["gfpl", "fedper"] and set(found["other"]) == {"local"}
    p = {}
    for name, gap in (("gfpl", 0.2), ("fedper", 0.1)):
        apart = [gap + a - b for a, b in zip(NOISE[name], NOISE["local"], strict=True)]
        p[name] = stats.ttest_1samp(apart, 0).pvalue
        assert found.loc[name, "difference"] == pytest.approx(sum(apart) / 3, abs=1e-12)
        assert found.loc[name, "p"] == pytest.approx(p[name], rel=1e-9)
    assert found["p_holm"].tolist() == pytest.approx(statistics.holm([p["gfpl"], p["fedper"]]))
    every = comparison_tables.pairs(evaluations()).set_index(["algorithm", "other"])
    assert (every.loc[("fedper", "local"), "p_holm"] >= found.loc["fedper", "p_holm"]).all()  # three tests, not two
    both = comparison_tables.against(evaluations(), ["local", "fedper"])
    assert list(zip(both["algorithm"], both["other"], strict=True)) == [("gfpl", "local"), ("gfpl", "fedper")]
    assert comparison_tables.against(evaluations(), []).empty
    assert len(comparison_text.shown_pairs(both)) == 2


def test_own_all_and_foreign_classes_stand_side_by_side():
    table = comparison_tables.table(evaluations(), SPENT, {})
    gfpl = table.set_index("algorithm").loc["gfpl"]
    assert (gfpl["tuned"], gfpl["all"], gfpl["foreign"]) == pytest.approx((0.82, 0.42, 0.12))
    assert gfpl["all_half"] == pytest.approx(gfpl["tuned_half"]) and gfpl["foreign_half"] > 0
    text = comparison_text.shown(table).set_index("algorithm")
    assert text.loc["gfpl", "all classes %"].startswith("42.00 ± ")
    assert text.loc["local", "foreign %"].startswith("1.33 ± ")
    without = evaluations().drop(columns=["test_acc_all", "test_acc_foreign"])  # with --all-classes 0
    shown = comparison_text.shown(comparison_tables.table(without, SPENT, {}))
    assert not {"all classes %", "foreign %"} & set(shown)


def test_local_and_fedavgft_join_where_they_run(capsys):
    plan = planned("--algos gfpl,fedper --trials 4")
    assert list(plan.plans) == ["gfpl", "fedper", "local", "fedavgft"] and plan.baselines == ("local", "fedavgft")
    assert plan.to_record()["algorithms"] == list(plan.plans)
    again = comparison_plan.make(ComparisonOptions.from_record(plan.to_record()))
    assert list(again.plans) == list(plan.plans) and again.baselines == plan.baselines
    joined = "note: also tuned, as baselines for the others: local, fedavgft (--baselines none leaves them out)"
    assert joined in capsys.readouterr().err
    assert {"lr", "momentum", "local_epochs"} <= set(plan.plans["local"].space.names)
    assert list(planned("--algos fedavgft,gfpl --trials 4").plans) == ["fedavgft", "gfpl", "local"]
    assert list(planned("--algos gfpl --trials 4 --baselines none").plans) == ["gfpl"]
    assert planned("--algos gfpl,fedper --trials 4 --baselines fedper").baselines == ("fedper",)
    capsys.readouterr()
    pooled = planned("--algos fedavg --scenario digits-fedgen --trials 4")
    assert list(pooled.plans) == ["fedavg"] and pooled.baselines == ()
    said = capsys.readouterr().err
    assert "note: local cannot be a baseline here: evaluation rule 'pooled' scores one global model" in said
    assert "note: fedavgft cannot be a baseline here" in said
    grids = planned("--algos gfpl --space paper")
    assert list(grids.plans) == ["gfpl"] and "its grid has" in capsys.readouterr().err


def test_a_tuned_value_near_an_edge_is_told():
    plan = planned("--algos gfpl,fedper --trials 4 --baselines none")
    records = {n: {"algorithm": n, "searcher": "tpe", "space": p.space.text()} for n, p in plan.plans.items()}
    random, note = comparison_text.caveats(records, 4, evaluations())
    begun = "with 4 trials tpe has hardly begun to learn (its first 10 are random)"
    assert random == f"{begun}: read these as random searches, or give --trials 32"
    assert note.startswith("gfpl has lr = 0.0011, at the lower end of the searched 0.001..0.3 log")


def test_what_was_chosen_anew_on_fresh_seeds_is_told():
    runs = [
        {"algorithm": a, "configuration": c, "chosen": c == best, "seed": s, "trial": f"{a}-{c[-1]}"}
        for a, best in (("gfpl", "top 3"), ("fedper", "top 1"), ("[own]", "top 2"))
        for c in ("default", "top 1", "top 2", "top 3")
        for s in (1, 2)
    ]
    (note,) = comparison_text.caveats({}, 40, pd.DataFrame(runs))
    assert "of gfpl (trial gfpl-3) and [own] (trial [own]-2) that is not the search's own best" in note
    kept = pd.DataFrame(runs).assign(chosen=lambda f: f["configuration"] == "top 1")
    assert not comparison_text.caveats({}, 40, kept)
