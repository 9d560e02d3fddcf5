"""What a comparison's searches had found after 1, 2, 3, … trials: which estimator, over what, and who leads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedtune.core import statistics
from fedtune.core.budget import Budget
from fedtune.core.objectives import Goal, constraints, parse
from fedtune.runs.files import RunFiles
from fedtune.studies.comparison import budgets

DONE = "finished"


def search(folder: Path, scores: Sequence[float], status: Sequence[str] = (), **more: Any) -> Any:
    """What is used of a search's plan, with its table of trials; a score that is no number is of one that diverged."""
    status = status or ["diverged" if math.isnan(s) else DONE for s in scores]
    rounds = [{DONE: 9, "stopped": 3, "not started": 0}.get(of, 1) for of in status]
    names = [f"t{i}" for i in range(len(scores))]
    rows = {"trial": names, "status": list(status), "rounds": rounds, "last_val_acc": list(scores), "reason": ""}
    folder.mkdir(parents=True)
    pd.DataFrame(rows | more.pop("columns", {})).to_parquet(folder / "trials.parquet")
    plan = {"files": RunFiles(folder), "budget": Budget("rounds", 9), "goal": Goal(), "points": [{}], "extended": None}
    return SimpleNamespace(**plan | {"searcher": "tpe", "scheduler": "asha", "unjudged": ""} | more)


def scores(plan: Any) -> list[float]:
    return budgets._of_search(plan)["score"].tolist()


def test_trials_count_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    found = budgets._of_search(search(tmp_path / "a", [0.6, 0.5, 0.8, 0.7]))
    assert found["score"].tolist() == [0.6, 0.6, 0.8, 0.8] and found["rounds"].tolist() == [9, 18, 27, 36]


def test_what_is_chosen_is_what_the_search_would_have_chosen(tmp_path: Path) -> None:
    """No trial that was stopped is, if another ended; none that diverged; none that breaks a constraint."""
    stopped = search(tmp_path / "a", [0.4, 0.9, 0.5], ["stopped", "stopped", DONE])
    assert scores(stopped) == [0.4, 0.9, 0.5]
    lost = scores(search(tmp_path / "b", [math.nan, 0.5, 0.6, 0.9], ["diverged", DONE, DONE, "not started"]))
    assert math.isnan(lost[0]) and lost[1:] == [0.5, 0.6], "a trial that never began does not count"
    goal = Goal(constraints=constraints("comm_mb<=5"))
    bound = scores(search(tmp_path / "c", [0.9, 0.5], goal=goal, columns={"comm_mb": [6.0, 4.0]}))
    assert math.isnan(bound[0]) and bound[1:] == [0.5]
    least = Goal(parse("val_loss"))
    assert scores(search(tmp_path / "d", [0, 0], goal=least, columns={"last_val_loss": [2.0, 1.0]})) == [2.0, 1.0]


@pytest.mark.parametrize("points", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_where_the_order_is_luck_the_mean_over_all_orders_is_taken(points: int, sign: int, tmp_path: Path) -> None:
    """The first trials, the default, come first in each."""
    values = [0.5, 0.2, 0.7, math.nan if points else 0.3, 0.6]
    goal = Goal() if sign > 0 else Goal(parse("val_loss"))
    more = {"columns": {"last_val_loss": values}} if sign < 0 else {}
    plan = search(tmp_path / "a", values, searcher="random", scheduler="none", points=[{}] * points, goal=goal, **more)
    signed = [-math.inf if math.isnan(v) else sign * v for v in values]
    orders = [(*signed[:points], *of) for of in itertools.permutations(signed[points:])]
    want = sign * np.mean([np.maximum.accumulate(of) for of in orders], axis=0)
    np.testing.assert_allclose(scores(plan), want, rtol=0, atol=1e-14)


def test_the_order_is_luck_only_of_random_draws_of_which_none_was_stopped(tmp_path: Path) -> None:
    values, luck = [0.5, 0.2, 0.7, 0.6], {"searcher": "random", "scheduler": "none"}
    as_they_ran = [0.5, 0.5, 0.7, 0.7]
    unlike: list[Mapping[str, Any]] = [{"searcher": "tpe"}, {"scheduler": "asha"}, {"extended": Path("before")}]
    for i, other in enumerate(unlike):
        assert scores(search(tmp_path / f"{i}", values, **{**luck, **other})) == as_they_ran
    assert scores(search(tmp_path / "cut", values, [DONE, DONE, DONE, "stopped"], **luck)) == [0.5, 0.5, 0.7, 0.7]
    unjudged = search(tmp_path / "whole", values, searcher="random", unjudged="no rung comes before the end")
    assert scores(unjudged) == pytest.approx([0.5, (0.5 + 0.7 + 0.6) / 3, (0.7 + 0.7 + 0.6) / 3, 0.7], abs=1e-14)


def three(folder: Path) -> list[dict[str, Any]]:
    """Three searches of two algorithms: one leads at first, the other in the end."""
    quick = [[0.6, 0.62, 0.62, 0.62], [0.5, 0.55, 0.55, 0.55], [0.55, 0.6, 0.6, 0.6]]
    slow = [[0.3, 0.5, 0.7, 0.8], [0.2, 0.4, 0.6, 0.7], [0.25, 0.45, 0.7, 0.75, 0.9]]
    return [
        {"quick": search(folder / f"quick{k}", quick[k]), "slow": search(folder / f"slow{k}", slow[k])}
        for k in range(3)
    ]


def test_the_unit_is_the_search_and_none_has_more_trials_than_another(tmp_path: Path) -> None:
    found = budgets.table(three(tmp_path))
    assert list(found) == list(budgets.COLUMNS) and len(found) == 2 * 4
    of = found.set_index(["algorithm", "trials"])
    assert tuple(of.loc[("slow", 3), ["score", "half"]]) == pytest.approx(statistics.mean([0.7, 0.6, 0.7]), abs=1e-15)
    assert of["rank"].unstack().loc["quick"].tolist() == [1, 1, 2, 2]
    assert of.loc[("quick", 2), "rounds"] == 18
    alone = budgets.table(three(tmp_path / "again")[:1])
    assert alone["half"].isna().all()


def test_an_algorithm_of_which_a_search_had_found_nothing_is_last(tmp_path: Path) -> None:
    searches = [
        {"a": search(tmp_path / "a1", [math.nan, 0.5]), "b": search(tmp_path / "b1", [0.1, 0.1])},
        {"a": search(tmp_path / "a2", [0.9, 0.9]), "b": search(tmp_path / "b2", [0.1, 0.1])},
    ]
    found = budgets.table(searches)
    assert found["score"].isna().tolist() == [True, False, False, False]
    assert found.set_index(["trials", "algorithm"])["rank"].unstack().to_numpy().tolist() == [[2, 1], [1, 2]]
