"""What a search goes for: objectives with their direction, and constraints."""

from __future__ import annotations

import math

import pytest

from fedtune.core.errors import UserError
from fedtune.core.metrics import JUDGED, METRICS, OBJECTIVES
from fedtune.core.objectives import (
    ACCURACY,
    BY_ACCURACY,
    WORST,
    Constraint,
    Goal,
    Objective,
    constraints,
    parse,
)

OWN = OBJECTIVES | {"val_recall": "", "val_recall_std": "min", "val_recall_worst10": ""}


def test_every_validation_metric_and_cost_can_be_searched_for_in_its_own_direction() -> None:
    for name, mode in OBJECTIVES.items():
        (found,) = parse(name)
        assert found == Objective(name, mode) and str(found) == name
        assert parse(f"{name}:{mode}") == (found,)
    assert parse("val_acc") == BY_ACCURACY.objectives == (ACCURACY,)
    assert [o.name for o in parse("val_acc_worst10, comm_mb")] == ["val_acc_worst10", "comm_mb"]


def test_a_metric_of_ones_own_is_searched_for_in_the_direction_that_is_given() -> None:
    both = "val_recall:max,val_recall_worst10:min"
    assert ",".join(map(str, parse(both, OWN))) == both
    with pytest.raises(UserError, match="needs a direction.*give val_recall:max or val_recall:min"):
        parse("val_recall", OWN)
    with pytest.raises(UserError, match="did you mean 'val_recall'"):
        parse("val_recal:max", OWN)
    assert parse("val_recall:max", OWN)[0].tested == "test_recall"
    assert parse("val_recall_std", OWN)[0].mode == "min"


@pytest.mark.parametrize("name", ["test_acc", "test_recall", "test_loss:min"])
def test_test_metrics_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UserError, match="a search must not use test data"):
        parse(name, OWN)
    with pytest.raises(UserError, match="use val_"):
        constraints(f"{name.partition(':')[0]}>=0.5", OWN)


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        *((text, False) for text in ("val_acc>=1.01", "val_acc<=-0.1", "comm_mb<=-1", "val_loss>=28")),
        *((text, False) for text in ("comm_mb<=5,comm_mb>=6", "val_acc_std>=0.6", "val_gain<=1,val_gain>=2")),
        *((text, True) for text in ("val_acc>=1", "val_acc<=0", "comm_mb<=0", "comm_mb<=5,comm_mb>=5")),
        *((text, True) for text in ("val_loss<=27.6", "val_gain>=99", "val_gain<=-99")),
    ],
)
def test_a_constraint_that_no_value_satisfies_is_refused(text: str, possible: bool) -> None:
    def check() -> str:
        return ",".join(map(str, constraints(text, OBJECTIVES | {"val_gain": ""})))

    if possible:
        assert check() == text
    else:
        with pytest.raises(UserError, match="--subject-to must allow some value of"):
            check()


def test_a_record_gives_the_goal_back_as_it_was() -> None:
    goal = Goal(parse("val_recall:min,val_acc", OWN), constraints("comm_mb<=20, val_acc_worst10>=0.25,seconds<=1e3"))
    assert Goal.from_record(goal.to_record()) == goal
    assert Goal.from_record({}) == Goal.from_record({"objectives": ["val_acc"]}) == BY_ACCURACY
    assert constraints("") == ()


def test_each_objective_is_reported_by_the_test_metric_of_its_name() -> None:
    assert {str(o): o.tested for name in OBJECTIVES for o in parse(name)} == {
        name: f"test_{name[4:]}" if name.startswith("val_") else "test_acc" for name in OBJECTIVES
    }
    assert {o.tested for name in OBJECTIVES for o in parse(name)} <= set(METRICS)


def test_a_constraint_is_broken_by_a_share_of_its_bound() -> None:
    least, most = Constraint("val_acc", ">=", 0.5), Constraint("comm_mb", "<=", 20.0)
    assert [least.excess(v) for v in (0.25, 0.5, 0.75)] == [0.5, 0.0, -0.5]
    assert [most.excess(v) for v in (10.0, 20.0, 30.0)] == [-0.5, 0.0, 0.5]
    assert Constraint("val_acc_std", "<=", 0.0).excess(0.1) == 0.1
    assert [Goal().at_end("comm_mb", *of) for of in ((5.0, 0.25), (5.0, 1.0), (0.0, 0.0))] == [20.0, 5.0, 0.0]
    assert Goal().at_end("val_acc", 0.4, 0.25) == 0.4  # an accuracy does not add up
    assert Goal().at_end("epsilon", 4.0, 0.25) == 4.0  # nor does a value that is known before training
    assert [Goal(growing=of).at_end("kwh", 4.0, 0.25) for of in ((), ("kwh",))] == [4.0, 16.0]


@pytest.mark.parametrize("objective", ["val_acc", "val_loss", "comm_mb"])
def test_schedulers_put_what_breaks_a_constraint_behind_all_that_breaks_none(objective: str) -> None:
    goal = Goal(parse(objective), constraints("comm_mb<=20,val_acc>=0.2"))
    first, rows = goal.first, []
    for acc, mb in ((0.3, 4.0), (0.9, 4.0), (0.9, 30.0), (0.9, 90.0), (0.1, 90.0)):
        row = {"val_acc": acc, "val_loss": 1 - acc, "comm_mb": mb}
        rows.append(first.sign * goal.judged(row, goal.excesses(row, progress=1.0)))
    assert min(rows[:2]) > rows[2] > rows[3] > rows[4]
    diverged = goal.of_diverged(0.1)
    assert first.sign * diverged[JUDGED] < rows[4] and math.isfinite(diverged[JUDGED])
    assert goal.attribute == JUDGED and Goal(parse(objective)).attribute == objective


def test_what_a_trial_has_used_is_projected_to_its_end() -> None:
    goal = Goal(constraints=constraints("comm_mb<=20"))
    row = {"val_acc": 0.9, "comm_mb": 6.0}
    assert goal.excesses(row, progress=0.5) == [-0.4] and goal.judged(row, [-0.4]) == 0.9
    assert goal.excesses(row, progress=0.25) == pytest.approx([0.2]) and goal.judged(row, [0.2]) < -WORST


def test_a_diverged_trial_is_the_worst_whatever_the_direction() -> None:
    for name, mode in OBJECTIVES.items():
        found = Goal(parse(name)).of_diverged(0.25)
        assert found["val_acc"] == 0.25  # chance
        if name != "val_acc":
            worst = found[name] if mode == "min" else -found[name]
            assert math.isfinite(worst) and worst >= (METRICS[name].worst or 0) * (1 if mode == "min" else -1)
    assert Goal(parse("val_recall:max", OWN)).of_diverged(0.5)["val_recall"] == -WORST
    assert Goal(parse("comm_mb")).of_diverged(0.5)["comm_mb"] == WORST


@pytest.mark.parametrize(
    ("objective", "result", "progress", "heading"),
    [
        ("val_acc,comm_mb", {}, 0.25, (0.5, -8.0)),  # a cost that grows, as it will be at the end
        ("val_acc,comm_mb", {}, 1.0, (0.5, -2.0)),
        ("val_loss,val_acc,seconds", {}, 0.5, (-3.0, 0.5, -20.0)),
        ("comm_mb", {}, 0.25, (-2.0,)),  # a single one is what asha compares
        ("val_loss", {"diverged": True}, 0.25, (-3.0,)),
        ("val_acc,comm_mb", {"diverged": True}, 0.25, (-2 * WORST, -2 * WORST)),
        ("val_acc,epsilon", {"epsilon": math.inf}, 0.5, (0.5, -WORST)),  # without noise
    ],
)
def test_a_trial_is_judged_by_where_it_is_heading(
    objective: str, result: dict, progress: float, heading: tuple[float, ...]
) -> None:
    reported = {"val_acc": 0.5, "val_loss": 3.0, "comm_mb": 2.0, "time_total_s": 10.0}
    assert Goal(parse(objective)).heading(reported | result, progress) == heading


def test_what_breaks_a_constraint_without_bound_is_judged_by_a_number() -> None:
    goal = Goal(parse("val_acc"), constraints("epsilon<=8"))
    (excess,) = goal.excesses({"epsilon": math.inf}, 0.5)
    assert excess == math.inf and goal.judged({}, [excess]) == -2 * WORST < goal.judged({}, [9.0]) < -WORST


def test_what_will_break_a_constraint_is_worse_than_all_that_will_not_and_by_how_much() -> None:
    goal = Goal(parse("val_acc,val_loss"), constraints("comm_mb<=10"))
    headings = []
    for mb in (2.0, 6.0, 4.0):  # after a quarter
        result = {"val_acc": mb / 10, "val_loss": 1.0, "comm_mb": mb}
        judged = {JUDGED: goal.judged(result, goal.excesses(result, 0.25))}
        headings.append(goal.heading(result | judged, 0.25))
    kept, much, little = headings
    assert kept == (0.2, -1.0) and max(much) < max(little) <= -WORST
    assert max(goal.heading(judged | result | {"diverged": True}, 0.25)) < min(much)
