"""Searches for another metric than accuracy, in its own direction and under constraints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ray import tune
from ray.tune.schedulers import TrialScheduler
from support.searches import QUICK, searched

from fedtune.commands import status
from fedtune.core.budget import Budget
from fedtune.core.metrics import LOSS_CAP, label
from fedtune.core.objectives import BY_ACCURACY, EXCESSES, Goal, constraints, parse
from fedtune.runs import frames, logs, tables
from fedtune.runs.folder import StudyFolder
from fedtune.tuning import messages, schedulers, searchers, verdict
from fedtune.tuning.checked import FinalCheck
from fedtune.tuning.optuna_searcher import OptunaSearcher
from fedtune.tuning.space import Space

SPACE = Space({"lam": tune.uniform(0.1, 10)}, [])


class Trial:
    """Stands in for Ray's."""

    def __init__(self, trial_id: str) -> None:
        self.trial_id, self.status = trial_id, "RUNNING"

    def is_finished(self) -> bool:
        return False


class Controller(SimpleNamespace):
    """Stands in for Ray's, whose search has no more trials."""

    def get_live_trials(self) -> list[Trial]:
        return []


# ---- schedulers


def decisions(name: str, goal: Goal, values: np.ndarray) -> list[list[str]]:
    """What a scheduler says in every round of every trial, one trial after another.  values [trials, rounds]"""
    np.random.seed(0)  # of the bracket that hyperband draws
    judge = schedulers.scheduler(name, Budget("rounds", 9), 1, SPACE, goal)
    search = SimpleNamespace(is_finished=lambda: False, searcher=SimpleNamespace(max_concurrent=1, room=None))
    controller, said = Controller(search_alg=search), []
    for i, rounds in enumerate(values):
        trial = Trial(trial_id=str(i))
        judge.on_trial_add(controller, trial)  # type: ignore[arg-type]
        said.append([])
        for t, value in enumerate(rounds, 1):
            result = {"training_iteration": t, goal.attribute: float(value), "time_total_s": float(t)}
            said[-1].append(judge.on_trial_result(controller, trial, result))  # type: ignore[arg-type]
            if said[-1][-1] != TrialScheduler.CONTINUE:
                break
        trial.status = "PAUSED" if said[-1][-1] == TrialScheduler.PAUSE else "TERMINATED"
    return said


@pytest.mark.parametrize("name", ["asha", "hyperband", "median", "promote"])
def test_a_loss_is_judged_as_its_negative_would_be(name: str) -> None:
    values = np.random.default_rng(1).random((24, 9))
    most, least = decisions(name, BY_ACCURACY, values), decisions(name, Goal(parse("val_loss")), -values)
    assert most == least
    assert len({tuple(said) for said in most}) > 1  # some ended early, others not
    assert most != decisions(name, BY_ACCURACY, -values)


@pytest.mark.parametrize(("objective", "sign"), [("val_acc", 1), ("val_loss", -1)])
def test_after_a_resume_a_new_scheduler_remembers_its_rungs_of_the_objective(objective: str, sign: int) -> None:
    goal, other = Goal(parse(objective)), {"val_acc": "val_loss", "val_loss": "val_acc"}[objective]
    rows = {
        name: [
            {"trial_id": name, "timestamp": t, "training_iteration": t, objective: value, other: 9.0}
            for t in range(1, last + 1)
        ]
        for name, value, last in (("a", 0.5, 9), ("b", 0.7, 2), ("c", 0.6, 3))
    }
    rows["d"] = [{"trial_id": "d", "timestamp": 4, "training_iteration": 3, objective: 0.1, "diverged": True}]
    judge: Any = schedulers.scheduler("asha", Budget("rounds", 27), 3, SPACE, goal)
    heard = logs.metric_history(rows, "training_iteration", goal.attribute)
    remember = schedulers.find("asha").remember
    assert remember is not None
    remember(judge, Budget("rounds", 27), heard)
    rungs = [(rung, dict(seen)) for rung, seen in judge._brackets[0]._rungs]
    assert rungs == [(27, {}), (9, {"a": sign * 0.5}), (3, {"a": sign * 0.5, "c": sign * 0.6})]


# ---- the searcher


def searcher(goal: Goal, name: str = "tpe") -> OptunaSearcher:
    found = searchers.searcher(name, SPACE, [], [], 3, "s", goal=goal)
    assert isinstance(found, OptunaSearcher)
    return found


def tell(of: OptunaSearcher, trial: str, **result: Any) -> None:
    of.suggest(trial)
    of.on_trial_complete(trial, {"training_iteration": 1, "time_total_s": 2.0} | result)


def test_a_diverged_trial_is_told_as_the_worst_that_there_is_in_its_direction() -> None:
    for objective, end, worst in (("val_loss", {"val_loss": 0.5}, LOSS_CAP), ("val_acc_worst10", {}, 0.0)):
        mine = searcher(Goal(parse(objective)))
        tell(mine, "a", **{objective: 0.5, "complete": True} | end)
        tell(mine, "b", **{objective: 1e12, "diverged": True})
        assert [(t.state.name, t.value) for t in mine.study.trials] == [("COMPLETE", 0.5), ("COMPLETE", worst)]
        assert mine.study.best_trial.number == 0


@pytest.mark.parametrize(("mode", "worst"), [("max", 0.25), ("min", 4.0)])
def test_of_a_metric_without_a_worst_value_it_is_the_worst_until_then(mode: str, worst: float) -> None:
    mine = searcher(Goal(parse(f"val_gain:{mode}", {"val_gain": ""})))
    tell(mine, "first", val_gain=0.0, diverged=True)
    for name, value in (("a", 2.0), ("b", 0.25), ("c", 4.0)):
        tell(mine, name, val_gain=value, complete=True)
    tell(mine, "d", val_gain=0.0, diverged=True)
    found = mine.study.trials
    assert found[0].state.name == "PRUNED" and found[-1].value == worst


@pytest.mark.parametrize("name", ["tpe", "gp", "nsga2", "random"])
def test_samplers_know_by_how_much_a_trial_breaks_each_constraint(name: str) -> None:
    goal = Goal(parse("val_acc"), constraints("comm_mb<=20,val_acc>=0.5"))
    mine = searcher(goal, name)
    tell(mine, "kept", val_acc=0.6, comm_mb=10.0, complete=True, **{EXCESSES: [-0.5, -0.2]})
    tell(mine, "broken", val_acc=0.9, comm_mb=30.0, complete=True, **{EXCESSES: [0.5, -0.8]})
    tell(mine, "stopped", val_acc=0.1, comm_mb=2.0, complete=False, **{EXCESSES: [1.5, 0.8]})
    tell(mine, "diverged", val_acc=0.1, judged=-2e12, diverged=True)
    found = [t.constraints for t in mine.study.trials]
    assert found[:3] == [{"comm_mb<=20": a, "val_acc>=0.5": b} for a, b in ((-0.5, -0.2), (0.5, -0.8), (1.5, 0.8))]
    assert found[3] == {"comm_mb<=20": 1.5, "val_acc>=0.5": 0.8}  # as much as any
    assert mine.study.best_trial.number == 0 and 0.1 <= mine.suggest("next")["lam"] <= 10


def test_tpe_goes_where_constraints_are_kept() -> None:
    """The objective rises with lam, and what lies above 4 is too dear."""

    def kept(goal: Goal) -> float:
        mine, found = searcher(goal), []
        for i in range(40):
            lam = mine.suggest(str(i))["lam"]
            found.append(lam)
            row = {"training_iteration": 1, "val_acc": lam / 10, "complete": True, EXCESSES: [(lam - 4) / 4]}
            mine.on_trial_complete(str(i), row)
        return float(np.mean([lam <= 4 for lam in found[20:]]))

    assert kept(BY_ACCURACY) <= 0.1 and kept(Goal(constraints=constraints("comm_mb<=4"))) >= 0.4


# ---- tables and words


def finished(**columns: list[float]) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    base = {"trial": list("abcdef"[:count]), "status": ["finished"] * count, "rounds": [3] * count}
    return pd.DataFrame(base | {"last_val_loss": [1.0] * count, "last_val_acc": [0.5] * count} | columns)


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        (BY_ACCURACY, "c"),
        (Goal(parse("val_loss")), "b"),
        (Goal(parse("comm_mb")), "a"),
        (Goal(constraints=constraints("comm_mb<=20")), "b"),
        (Goal(parse("val_loss"), constraints("comm_mb<=5,val_acc>=0.1")), "a"),
        (Goal(constraints=constraints("comm_mb<=1")), None),
    ],
)
def test_the_best_trial_is_the_best_that_keeps_the_constraints(goal: Goal, best: str | None) -> None:
    trials = finished(last_val_acc=[0.1, 0.6, 0.9], last_val_loss=[3.0, 0.4, 0.5], comm_mb=[4.0, 9.0, 90.0])
    found = tables.best_trial(trials, goal=goal)
    assert (None if found is None else found["trial"]) == best


def test_the_best_round_of_a_trial_is_that_of_the_objective() -> None:
    rounds = pd.DataFrame(
        {"round": [1, 2, 3], "val_acc": [0.5, 0.9, 0.7], "test_acc": [0.4, 0.8, 0.6], "val_loss": [0.9, 0.8, 0.3]}
        | {"seconds": 1.0, "eval_seconds": 1.0, "comm_mb": [1.0, 2.0, 3.0], "val_gain": [1.0, 0.0, 2.0]}
    )
    assert tables.trial_summary(rounds)["best_round"] == 2
    found = tables.trial_summary(rounds, Goal(parse("val_loss")))
    assert (found["best_round"], found["best_val_acc"], found["best_val_loss"]) == (3, 0.7, 0.3)
    gain = tables.trial_summary(rounds, Goal(parse("val_gain:min", {"val_gain": ""})))
    assert (gain["best_round"], gain["best_val_gain"], gain["last_val_gain"]) == (2, 0.0, 2.0)


def test_where_no_trial_keeps_the_constraints_none_is_the_best() -> None:
    goal = Goal(constraints=constraints("comm_mb<=20,val_acc>=0.8"))
    trials = finished(last_val_acc=[0.7, 0.9, 0.9], comm_mb=[4.0, 24.0, 90.0])
    said = verdict.nothing(goal, "rounds", trials)
    start = "none of the 3 longest trials satisfies comm_mb<=20 and val_acc>=0.8. "
    assert said.startswith(f"{start}The nearest is trial a with comm_mb 4.0000 MB and val_acc 70.00 %. Loosen")
    some = verdict.nothing(goal, "rounds", trials.assign(status=["finished", "finished", "stopped"]))
    assert some.startswith("none of the 2 longest trials satisfies comm_mb<=20")
    failed = trials.assign(status="failed", reason="lost:\nnan in round 2")
    assert verdict.nothing(goal, "rounds", failed) == "no trial ended with a finite result (the first: nan in round 2)"
    assert verdict.nothing(BY_ACCURACY, "rounds", failed[:0]) == "no trial ended with a finite result"


# ---- a whole search


@pytest.mark.long  # a search of Ray's
@pytest.mark.usefixtures("one_ray")
def test_a_search_for_the_lowest_loss_under_constraints_finds_it(tmp_path: Path, capsys: Any) -> None:
    """Its record, study, final check, status and frames are of its objective."""
    found = searched(  # FedAvg sends 1.1 MB in six rounds here; with fewer of them taking part, less
        tmp_path,
        "--algo fedavg --trials 6 --rounds 6 --scheduler asha --grace 2 --max-concurrent 2 --objective val_loss "
        f"--subject-to val_acc>=0.3,comm_mb<=9 {QUICK.replace('--final-seeds 0', '--final-seeds 2')}",
    )

    ended = found.trials[found.trials["status"] == "finished"]
    kept = ended[(ended["last_val_acc"] >= 0.3) & (ended["comm_mb"] <= 9)]
    best = StudyFolder(found.folder).best["found"]
    assert len(kept) and best["trial"] == kept.loc[kept["last_val_loss"].idxmin(), "trial"]
    assert best["val_loss"] == kept["last_val_loss"].min() and best["comm_mb"] <= 9
    assert (found.record["objectives"], found.record["constraints"]) == (["val_loss"], ["val_acc>=0.3", "comm_mb<=9"])
    judged = found.rounds["judged"]
    fine = (found.rounds["val_acc"] >= 0.3) & (found.rounds["comm_mb"] * 6 / found.rounds["round"] <= 9)
    assert (judged[fine] == found.rounds["val_loss"][fine]).all() and (judged[~fine] > 1e11).all()

    study = StudyFolder(found.folder).study
    assert study is not None and study.direction.name == "MINIMIZE"
    for trial in study.trials:
        assert set(trial.constraints) == {"val_acc>=0.3", "comm_mb<=9"}
    assert study.best_trial.user_attrs["trial"] == best["trial"]
    checked = pd.DataFrame(found.record["final"])
    assert {"val_loss", "test_loss", "test_acc_lowest", "comm_mb", "test_acc"} <= set(checked)
    clients = StudyFolder(found.folder).clients
    last = clients[clients["scored"] == "last"].groupby(["configuration", "seed"])["test_acc"].mean()
    for row in found.record["final"]:
        assert last[row["configuration"], row["seed"]] == pytest.approx(row["test_acc"], abs=1e-12)
    assert status.main([str(found.folder)]) == 0
    assert "lowest last val_loss" in capsys.readouterr().out
    assert frames.load(found.folder)[0]["best_val_loss"].notna().any()
    assert found.record["options"]["subject_to"] == "val_acc>=0.3,comm_mb<=9"


@pytest.mark.parametrize("name", ["val_loss", "val_acc_worst10", "val_acc_rows", "val_recall"])
def test_the_table_of_the_final_check_is_of_the_metric_that_was_searched_for(name: str, capsys: Any) -> None:
    tested = name.replace("val_", "test_")
    rows = [
        {"configuration": c, "seed": s, tested: figure + s / 100, "test_acc": 0.9, "comm_mb": 1.0, "reason": ""}
        for c, figure in (("best", 0.5), ("default", 0.3))
        for s in (1, 2, 3)
    ]
    goal = Goal(parse(f"{name}:max", {"val_recall": ""}) if name == "val_recall" else parse(name))
    workload = SimpleNamespace(traits=SimpleNamespace(repeatable=True))
    p: Any = SimpleNamespace(goal=goal, run_word="seed", workload=workload)
    messages._say_checked(p, FinalCheck(pd.DataFrame(rows), goal.first))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip().lower() == f"{label(tested)} on 3 fresh seeds, last round"
    best = next(line for line in lines if "best" in line)
    share = name.startswith("val_acc")
    assert ("52.00 ± 2.48 %" if share else "0.5200 ± 0.0248") in best
    assert ("51.00  52.00  53.00" if share else "0.5100  0.5200  0.5300") in best
    assert any("best: test accuracy" in line and "90.00 ± 0.00 %" in line for line in lines)
