"""A comparison's tables of searches for something else than validation accuracy."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest
from support.evaluations import evaluated, spent

from fedtune.core.objectives import ACCURACY, Goal, Objective, constraints, parse
from fedtune.studies import fresh_seeds
from fedtune.studies.comparison import results
from fedtune.studies.comparison import tables as comparison_tables
from fedtune.studies.comparison import text as comparison_text

SPENT = spent("abc")
WORST10, LOSS = parse("val_acc_worst10")[0], parse("val_loss")[0]


def evaluations(chosen: bool = True) -> pd.DataFrame:
    """Three algorithms on three seeds; b has the highest accuracy, a the best worst tenth, c the lowest loss."""
    rows = []
    for name, acc, worst, loss in (("a", 0.7, 0.6, 0.9), ("b", 0.9, 0.2, 0.8), ("c", 0.8, 0.4, 0.3)):
        for (configuration, off), seed in itertools.product((("default", 0.1), ("top 1", 0.0)), (1, 2, 3)):
            near = seed / 1000
            tested = {
                "test_acc": acc - off + near,
                "test_acc_worst10": worst - off + near,
                "test_loss": loss + off - near,
            }
            selects = {"val_acc": acc, "val_acc_worst10": worst + near, "val_loss": loss + near}
            rows.append(evaluated(name, configuration, seed, score=worst + 0.05, **selects, **tested))
    frame = pd.DataFrame(rows)
    return frame if chosen else frame.drop(columns="chosen")


@pytest.mark.parametrize(
    ("objective", "order", "metric"), [(WORST10, "acb", "test_acc_worst10"), (LOSS, "cba", "test_loss")]
)
def test_default_tuned_gain_gap_and_pairs_are_of_the_objectives_test_metric(
    objective: Objective, order: str, metric: str
) -> None:
    of = evaluations()
    table = comparison_tables.table(of, SPENT, {}, objective)
    assert "".join(table["algorithm"]) == order and set(table["metric"]) == {metric}
    best = of[(of["algorithm"] == order[0]) & of["chosen"]]
    first = table.iloc[0]
    assert first["tuned"] == pytest.approx(best[metric].mean())
    assert first["gain"] == pytest.approx(0.1 if objective == WORST10 else -0.1)
    assert first["selection_gap"] == pytest.approx((best["score"] - best[objective.name]).mean())
    assert first["tuned_test_acc"] == pytest.approx(best["test_acc"].mean())
    pairs = comparison_tables.pairs(of, objective)
    assert (pairs["algorithm"] + pairs["other"]).tolist() == [order[:2], order[0] + order[2], order[1:]]
    assert (pairs["difference"] > 0).all() == (objective == WORST10) and set(pairs["metric"]) == {metric}


def test_shares_are_shown_in_percent_and_losses_as_they_are() -> None:
    table = comparison_tables.table(evaluations(), SPENT, {}, WORST10)
    shown = comparison_text.shown(table)
    assert shown["tuned test_acc_worst10 %"].iloc[0].startswith("60.20")
    assert shown["tuned test_acc %"].iloc[0] == "70.20"
    loss = comparison_text.shown(comparison_tables.table(evaluations(), SPENT, {}, LOSS))
    assert loss["tuned test_loss"].iloc[0].startswith("0.2980") and loss["gain"].iloc[0].startswith("−0.1000")
    of_apps = evaluations().drop(columns="test_acc")  # programs report what they like
    without = comparison_text.shown(comparison_tables.table(of_apps, SPENT, {}, LOSS))
    assert list(without) == [name for name in loss if name != "tuned test_acc %"]
    pairs = comparison_text.shown_pairs(comparison_tables.pairs(evaluations(), LOSS))
    assert pairs["difference"].iloc[0].startswith("−0.5000")


def test_by_validation_accuracy_nothing_is_added() -> None:
    table, pairs = comparison_tables.table(evaluations(), SPENT, {}), comparison_tables.pairs(evaluations())
    assert list(table) == list(comparison_tables.COLUMNS) and "metric" not in pairs
    assert "".join(table["algorithm"]) == "bca" and list(comparison_text.shown(table))[1:3] == ["tuned %", "default %"]
    assert table.equals(comparison_tables.table(evaluations(), SPENT, {}, ACCURACY))


def test_a_table_of_validation_figures_does_not_say_test_accuracy() -> None:
    """As of programs that report no test rows."""
    of = evaluations()
    validation = of.drop(columns=[name for name in of if name.startswith("test_acc")])
    assert results.metric_on(comparison_tables.table(validation, SPENT, {}), Goal()) == "validation accuracy on"
    assert results.metric_on(comparison_tables.table(of, SPENT, {}), Goal()) == "test accuracy on"
    loss = comparison_tables.table(validation, SPENT, {}, LOSS)
    assert results.metric_on(loss, Goal((LOSS,))) == "test loss (searched for val_loss) on"
    loss = comparison_tables.table(validation.drop(columns="test_loss"), SPENT, {}, LOSS)
    assert results.metric_on(loss, Goal((LOSS,))) == "validation loss (searched for val_loss) on"


def test_the_best_candidate_that_keeps_the_constraints_is_chosen() -> None:
    found = evaluations(chosen=False)
    found["configuration"] = found["algorithm"].where(found["configuration"] != "default", "default")
    found["algorithm"] = "x"
    for goal, best in (
        (Goal(), "b"),
        (Goal((LOSS,)), "c"),
        (Goal((WORST10,)), "a"),
        (Goal(constraints=constraints("val_loss<=0.5")), "c"),
        (Goal(constraints=constraints("val_loss<=0.1")), "c"),
    ):
        chosen = fresh_seeds.is_tuned(found, goal)
        assert set(found.loc[chosen, "configuration"]) == {best}


def pairs_of(*rows: tuple[str, str, float, str]) -> pd.DataFrame:
    columns = ["algorithm", "other", "difference", "verdict"]
    return pd.DataFrame(rows, columns=columns).assign(half=0.1, p=0.1, p_holm=0.1)


def test_it_is_said_whom_tuning_helps_by_each_gains_interval() -> None:
    nan = float("nan")
    rows = [("a", 0.2, 0.1), ("b", -0.2, 0.1), ("c", 0.0, 0.0), ("d", 0.1, 0.1), ("e", 0.1, nan), ("f", 0.3, 0.2)]
    table = pd.DataFrame(rows, columns=["algorithm", "gain", "gain_half"])
    same, end = "tuning changes nothing for c", "whether tuning helps d cannot be told (95 % interval of each gain)."
    assert comparison_text.gains(table) == f"Tuning helps a and f; tuning harms b; {same}; {end}"
    assert comparison_text.gains(table, -1) == f"Tuning helps b; tuning harms a and f; {same}; {end}"
    assert comparison_text.gains(table[4:5]) == ""


def test_the_outcome_says_who_leads_and_who_is_above_whom() -> None:
    pairs = pairs_of(
        ("b", "c", 0.1, "cannot be told"),
        ("b", "a", 0.2, "larger"),
        ("b", "d", float("nan"), "not tested"),
        ("c", "a", 0.1, "larger"),
    )
    against = pairs_of(
        ("b", "local", 0.1, "larger"), ("c", "local", 0.1, "within the margin"), ("a", "local", -0.1, "larger")
    )
    table = comparison_tables.table(evaluations(), SPENT, {})
    assert comparison_text.outcome(table, pairs, against) == (
        "b ranks first on fresh seeds with 90.20 ± 0.25 %; a is worse than b and local; b is better than local; "
        "c is within the margin of local; c cannot be told apart from b; d could not be tested."
    )
    free = pairs_of(("b", "local", 0.1, "cannot be told"), ("b", "a", 0.3, "larger"), ("local", "a", 0.2, "larger"))
    assert comparison_text.outcome(table, free, pairs_of()).endswith(  # local takes part, but as no baseline
        " %; a is worse than b and local; local cannot be told apart from b."
    )
    untold = [("b", n, 0.1, "cannot be told") for n in ("a", "c", "local")]
    mine = pairs_of(*((n, "b", -0.1, "cannot be told") for n in ("a", "c", "local")))
    assert comparison_text.outcome(table, pairs_of(*untold), mine) == (  # where the best is a baseline itself: once
        "No two of 4 can be told apart; b ranks first on fresh seeds with 90.20 ± 0.25 %."
    )
    alone = pairs_of(("b", "d", 0.1, "larger"), ("c", "d", 0.1, "cannot be told"))
    assert comparison_text.outcome(table, pairs_of(*untold), alone).endswith(
        "%; tested against baselines only, b is better than d."
    )
    one = comparison_text.outcome(table, pairs_of(untold[0]), none := pairs_of())
    assert one == "b ranks first on fresh seeds with 90.20 ± 0.25 %; a cannot be told apart from b."
    lost = comparison_text.outcome(
        table, pairs_of(("b", "a", 0.1, "not tested")), pairs_of(("a", "d", 0.1, "not tested"))
    )
    assert lost.endswith("; a could not be tested."), "once"
    crowd = pairs_of(*(("b", f"x{i}", 0.1, "larger") for i in range(6)), ("b", "a", 0.1, "cannot be told"))
    assert comparison_text.outcome(table, crowd, none).endswith(
        "; 6 algorithms are worse than b; a cannot be told apart from b."
    )
    others = pairs_of(*((f"{x}{i}", x, -0.1, "larger") for x in "yz" for i in range(6)))
    assert comparison_text.outcome(table, crowd, others).endswith(
        "; 6 algorithms are worse than y; 6 algorithms are worse than z; a cannot be told apart from b."
    )
    once = comparison_text.outcome(table, pairs_of(("b", "c", 0.1, "")), pairs_of(("b", "local", 0.1, "")))
    assert once.startswith("b ranks first on fresh seeds with 90.20 ± 0.25 %. Each algorithm was searched once")
    assert once.endswith("there is no verdict.")
    loss = comparison_tables.table(evaluations(), SPENT, {}, LOSS)
    assert comparison_text.outcome(loss, none, none) == "c ranks first on fresh seeds with test loss 0.2980 ± 0.0025."
    assert comparison_text.outcome(table.assign(tuned=float("nan")), pairs, against) == ""
