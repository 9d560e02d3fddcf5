"""Successive halving of several objectives: ASHA with one, and with more by who beats whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import TrialScheduler
from support.searches import Listed

from fedtune.analysis.simulation.simulated_search import SimulatedSearch
from fedtune.core.budget import Budget
from fedtune.core.objectives import BY_ACCURACY, WORST, Goal, constraints, parse
from fedtune.runs import logs, pareto
from fedtune.tuning import schedulers
from fedtune.tuning.space_types import Space

BUDGET, SPACE = Budget("rounds", 9), Space({"lr": tune.uniform(0, 1)}, [])
BOTH = Goal(parse("val_acc,comm_mb"))
Row = dict[str, Any]


class Trial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id


def judge(name: str = "front", goal: Goal = BOTH) -> Any:
    return schedulers.scheduler(name, BUDGET, 1, SPACE, goal)


def row(trial: int, t: int, acc: float, mb: float = 0.0, **more: Any) -> Row:
    return {"trial_id": str(trial), "training_iteration": t, "round": t, "val_acc": acc, "comm_mb": mb, **more}


def play(scheduler: Any, rows: Iterable[Row]) -> list[tuple[str, int, str]]:
    """What a scheduler says of results in this order, until it stops a trial or that has diverged."""
    said, over, begun = [], set(), set()
    for result in rows:
        trial = Trial(result["trial_id"])
        if trial.trial_id in over:
            continue
        if trial.trial_id not in begun:
            scheduler.on_trial_add(None, trial)
            begun.add(trial.trial_id)
        if result.get("diverged"):
            decision = "diverged"
        else:
            decision = scheduler.on_trial_result(None, trial, result)
        if decision in ("diverged", TrialScheduler.STOP):
            scheduler.on_trial_complete(None, trial, result)
            over.add(trial.trial_id)
        said.append((trial.trial_id, result["training_iteration"], decision))
    return said


def arrivals(seed: int, trials: int, diverge: float = 0.1) -> list[Row]:
    """Results at rungs, in a random order; values are rounded, so that many are equal."""
    drawn = np.random.default_rng(seed)
    digits = int(drawn.integers(1, 4))
    at = {i: 0 for i in range(trials)}
    rows = []
    while at:
        i = int(drawn.choice(list(at)))
        t, at[i] = 3 ** at[i], at[i] + 1
        acc, mb = drawn.random(2).round(digits).tolist()
        lost = bool(drawn.random() < diverge)
        rows.append(row(i, t, 0.1 if lost else acc, mb, timestamp=len(rows), **({"diverged": True} if lost else {})))
        if lost or t == 9:
            del at[i]
    return rows


def test_with_one_objective_it_decides_as_asha() -> None:
    stopped = 0
    for seed in range(1000):
        rows = arrivals(seed, 2 + seed % 10)
        theirs, ours = (play(judge(name, BY_ACCURACY), rows) for name in ("asha", "front"))
        assert theirs == ours, seed
        stopped += sum(decision == TrialScheduler.STOP for *_, decision in ours)
    assert stopped > 2000


@pytest.mark.parametrize("seed", range(30))
def test_a_third_of_those_at_a_rung_goes_on_by_place(seed: int) -> None:
    seen: list[tuple[float, float]] = []
    scheduler = judge()
    for i, (acc, mb) in enumerate(np.random.default_rng(seed).random((40, 2)).round(1).tolist()):
        seen.append((acc, -mb * 9))  # after one of nine rounds
        ((*_, decision),) = play(scheduler, [row(i, 1, acc, mb)])
        goes_on = pareto.places(seen)[-1] <= max(1, math.ceil(len(seen) / 3))
        assert decision == (TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP)


@pytest.mark.parametrize("goal", [BOTH, Goal(parse("val_acc,comm_mb,val_loss")), Goal(parse("val_acc"))], ids=str)
def test_what_beats_all_goes_on_and_what_all_beat_is_stopped_from_the_third_on(goal: Goal) -> None:
    for seed in range(50):
        drawn, scheduler = np.random.default_rng(seed), judge(goal=goal)
        for i in range(12):
            play(scheduler, [row(i, 1, *drawn.uniform(0.3, 0.6, 2).tolist(), val_loss=drawn.uniform(1, 2))])
            best, worst = judge(goal=goal), judge(goal=goal)
            for other in (best, worst):
                other._rungs = [(milestone, dict(of)) for milestone, of in scheduler._rungs]
            assert play(best, [row(99, 1, 0.9, 0.1, val_loss=0.5)])[0][-1] == TrialScheduler.CONTINUE
            if i >= 1:
                assert play(worst, [row(99, 1, 0.1, 0.9, val_loss=5.0)])[0][-1] == TrialScheduler.STOP


def test_what_diverges_or_breaks_a_constraint_ranks_behind_all_others() -> None:
    goal = Goal(parse("val_acc,val_loss"), constraints("comm_mb<=10"))
    scheduler = judge(goal=goal)

    def said(i: int, acc: float, mb: float, **more: Any) -> str:
        result = row(i, 1, acc, mb, val_loss=1 - acc, **more)
        judged = goal.judged(result, goal.excesses(result, 1 / 9))
        return play(scheduler, [result | {goal.attribute: judged}])[0][-1]

    assert [said(i, 0.9, 2.0) for i in range(2)] == [TrialScheduler.CONTINUE, TrialScheduler.STOP]  # 18 MB at the end
    assert said(2, 0.2, 0.5) == TrialScheduler.CONTINUE  # 4.5 MB
    assert said(3, 0.99, 2.0) == TrialScheduler.STOP
    assert said(4, 0.1, 0.5, diverged=True) == "diverged"
    assert said(5, 0.15, 0.9) == TrialScheduler.CONTINUE  # the second of six
    (_, rung) = scheduler._rungs[-1]
    assert sorted(rung, key=lambda name: rung[name])[0] == "4" and rung["4"] == (-2 * WORST, -2 * WORST)


@pytest.mark.parametrize("goal", [BOTH, BY_ACCURACY], ids=str)
def test_after_a_resume_its_rungs_are_as_they_were(goal: Goal) -> None:
    for seed in range(40):
        rows = arrivals(seed, 20, diverge=0.0)
        whole, before, after = judge(goal=goal), judge(goal=goal), judge(goal=goal)
        said, half = play(whole, rows), len(rows) // 2
        first = play(before, rows[:half])
        over = {trial for trial, _, decision in first if decision == TrialScheduler.STOP}
        logged: dict[str, list[Row]] = {}
        told = {(trial, t) for trial, t, _ in first}
        for result in rows[:half]:
            if (result["trial_id"], result["training_iteration"]) in told:
                logged.setdefault(result["trial_id"], []).append(result)
        remember = schedulers.find("front").remember
        assert remember is not None
        remember(after, BUDGET, logs.metric_history(logged, BUDGET.attribute, goal.attribute))
        assert after._rungs == before._rungs
        assert said == first + play(after, [r for r in rows[half:] if r["trial_id"] not in over])


def test_a_simulated_search_is_stopped_by_both_objectives() -> None:
    """The better of two that cost the same goes on, and so does the cheaper of two that are as good."""
    accs, costs = (0.5, 0.4, 0.5, 0.5, 0.6), (1.0, 1.0, 2.0, 0.5, 0.4)

    def of(values: Sequence[float], config: Row) -> np.ndarray:
        return np.full(9, values[config["n"]])

    search = SimulatedSearch(
        searcher=Listed(),  # type: ignore[arg-type]
        scheduler=judge(),
        curve=lambda config: of(accs, config).tolist(),
        rounds=9,
        trials=5,
        costs=lambda config: {"comm_mb": (of(costs, config) * np.arange(1, 10)).tolist()},
    )
    last = {r.trial: r.round for r in search.run()}
    assert last == {0: 9, 1: 1, 2: 1, 3: 9, 4: 9}
