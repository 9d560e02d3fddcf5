"""What a search leaves behind, on hand-made runs."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from fedtune.core import metrics
from fedtune.core.objectives import parse_recorded
from fedtune.core.terminal import short
from fedtune.runs import tables
from fedtune.runs.trial_states import status


class Grid(list):
    """Stands in for Ray's ResultGrid."""


def result(name, rows, config=None, error=None):
    frame = pd.DataFrame(rows)
    metrics = rows[-1] | {"trial_id": name} if rows else {}
    return SimpleNamespace(metrics=metrics, metrics_dataframe=frame, config=config or {}, error=error, path=f"x-{name}")


def row(t, val, loss=1.0):
    costs = {"train_loss": 1.0, "seconds": 1.0, "eval_seconds": 0.5, "comm_mb": t * 2.0}
    figures = {"val_acc": val, "val_loss": loss, "test_acc": val / 2, "test_acc_std": 0.1}
    rays = {"training_iteration": t, "done": False, "complete": t == 3, "trial_id": "z"}
    return {"round": t} | figures | costs | rays


GRID = Grid(
    [
        result("a", [row(1, 0.2), row(2, 0.5), row(2, 0.6), row(3, 0.4)], {"lam": 1.0}),  # 2 twice: recovered
        result("b", [row(1, 0.9)], {"lam": 2.0}),
        result("c", [row(1, 0.3), {"training_iteration": 2, "val_acc": 0.1, "diverged": True, "reason": "nan"}]),
        result("d", [row(1, 0.3)], error=RuntimeError("gone")),
        result("e", []),
    ]
)
REPORTED = {r.metrics.get("trial_id", "e"): r.metrics_dataframe.to_dict("records") for r in GRID}
REPORTED["c"] = REPORTED["c"][:1] + [{"val_acc": 0.1, "diverged": True}]


def test_there_is_no_best_trial_before_a_round():
    begun = pd.DataFrame({"trial": ["a", "b"], "status": ["stopped", "failed"], "rounds": [0, 0]})
    assert tables.best_trial(begun) is None and tables.best_trials(begun).empty


def test_each_round_of_a_trial_is_there_once_and_the_last_report_counts():
    rounds = tables.rounds_frame(REPORTED)
    assert rounds.groupby("trial")["round"].apply(list).to_dict() == {"a": [1, 2, 3], "b": [1], "c": [1], "d": [1]}
    assert rounds.query("trial == 'a' and round == 2")["val_acc"].item() == 0.6
    assert {"done", "trial_id", "training_iteration"}.isdisjoint(rounds.columns)


NEW = {"time_since_yesterday_s": 3.0, "val_of_ray": 0.5, "perf": {"cpu": 0.9}, "worker": "node-1/7", "pause": True}


def test_a_new_entry_of_rays_in_a_result_is_no_metric():
    """Metrics are declared, or named by their result: what an algorithm reports, heads, a user's own."""
    ours = {"anchor_drift": 0.25, "val_acc_local": 0.75, "test_fairness": 0.5}
    rows = {
        "a": [row(t, 0.1 * t) | NEW | ours | {metrics.REPORTED: list(ours)} for t in (1, 2, 3)],
        "b": [row(1, 0.1) | NEW],
    }
    rounds = tables.rounds_frame(rows)
    assert set(rounds) == {"trial", "round", *ours, *(n for n in row(1, 0.1) if n in metrics.METRICS)}
    assert rounds.query("trial == 'a'")["anchor_drift"].tolist() == [0.25] * 3
    trials = tables.trials_frame(Grid([result(name, of) for name, of in rows.items()]), rounds)
    assert not any(new in column for column in trials for new in NEW)


def test_a_value_that_a_trial_did_not_have_is_left_out():
    """Of a conditional hyperparameter a table holds not-a-number, or None where the others are true or false."""
    frame = pd.DataFrame({"x": [1.5, None], "on": [True, None], "n": [3, 4]})
    assert tables.plain(frame.iloc[1].to_dict()) == {"n": 4}
    assert tables.plain(frame.iloc[0].to_dict()) == {"x": 1.5, "on": True, "n": 3}


def test_trials_tell_how_they_ended():
    trials = tables.trials_frame(GRID, tables.rounds_frame(REPORTED)).set_index("trial")
    assert trials["status"].tolist() == ["finished", "stopped", "diverged", "failed", "not started"]
    a = trials.loc["a"]
    assert (a["rounds"], a["best_round"], a["best_val_acc"], a["last_val_acc"]) == (3, 2, 0.6, 0.4)
    assert (a["seconds"], a["comm_mb"], a["config/lam"]) == (4.5, 6.0, 1.0)
    assert trials.loc["c", "reason"] == "nan" and "gone" in trials.loc["d", "reason"]


def frame(*rows):
    return pd.DataFrame(rows, columns=["trial", "status", "rounds", "last_val_acc", "last_val_loss"])


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([("a", "finished", 9, 0.5, 1.0), ("b", "finished", 9, 0.6, 1.0)], "b"),
        ([("a", "finished", 9, 0.5, 1.0), ("b", "finished", 9, 0.5, 0.9)], "b"),  # a tie goes to the lower loss
        ([("a", "finished", 9, 0.5, 1.0), ("b", "stopped", 3, 0.9, 0.1)], "a"),  # another training length
        ([("a", "stopped", 3, 0.5, 1.0), ("b", "stopped", 3, 0.9, 0.1)], "b"),
        ([("a", "finished", 9, 0.5, 1.0), ("b", "diverged", 9, 0.9, 0.1), ("c", "failed", 9, 0.9, 0.1)], "a"),
        ([("a", "diverged", 9, 0.5, 1.0), ("b", "not started", 0, float("nan"), 0.1)], None),
    ],
)
def test_the_best_is_chosen_among_the_longest_by_validation(rows, best):
    found = tables.best_trial(frame(*rows))
    assert (None if found is None else found["trial"]) == best


def test_open_are_those_that_had_not_ended_by_what_they_reported():
    """Ray's snapshot may be older than a trial's last report; a failed trial's next try may have been waiting."""
    statuses = ["finished", "stopped", "not started", "failed", "stopped", "diverged", "stopped"]
    table = frame(*[(name, status, 1, 0.5, 1.0) for name, status in zip("abcdefg", statuses, strict=True)])
    found = tables.with_open(table, dict.fromkeys("abcdf", "open") | {"e": "stopped"})["status"].tolist()
    assert found == ["finished", "open", "open", "open", "stopped", "diverged", "stopped"]


def test_status_and_short():
    assert status({"complete": True}) == "finished" and status({"complete": False}) == status({}) == "stopped"
    assert status({"diverged": True}) == "diverged"
    assert status({"diverged": True, "reason": "not trained: epsilon would be 9 at its end"}) == "not trained"
    assert [short(v) for v in (1.23456, 3, True, None, "x")] == ["1.235", "3", "True", "", "x"]
    none = tables.rounds_frame({})
    assert none.empty and tables.trials_frame(Grid([result("e", [])]), none)["status"].tolist() == ["not started"]


def some_tested(*tested: int, rounds: int = 3) -> list[dict]:
    """A trial's rows, with figures on test rows in these rounds."""
    rows = [row(t, 0.2 * t) for t in range(1, rounds + 1)]
    return [r if r["round"] in tested else {n: v for n, v in r.items() if not n.startswith("test_")} for r in rows]


@pytest.mark.parametrize(
    ("objective", "wanted"),
    {
        "val_acc": {"test_acc": 0.9},
        "val_acc_worst10": {"test_acc_worst10": 0.7, "test_acc": 0.9},
        "val_loss": {"test_loss": 0.4, "test_acc": 0.9},
        "val_acc_rows": {"test_acc_rows": 0.8, "test_acc": 0.9},
        "val_recall:max": {"test_recall": 0.6, "test_acc": 0.9},  # a user's metric
        "comm_mb": {"test_acc": 0.9},  # no test rows have a part in it
        "val_f1": {"test_acc": 0.9},  # whose test figure is missing
    }.items(),
)
def test_the_test_figure_of_what_was_searched_for_comes_first(objective, wanted):
    figures = {"acc_worst10": 0.7, "acc": 0.9, "loss": 0.4, "acc_rows": 0.8, "recall": 0.6}
    trial = {"rounds": 3, "test_round": 3} | {f"last_test_{n}": v for n, v in figures.items()}
    assert list(tables.tested(pd.Series(trial), parse_recorded(objective)).items()) == list(wanted.items())


def test_open_trials_of_an_extension_that_broke_off_are_stopped_in_the_next(tmp_path):
    before = tables.rounds_frame({"old": some_tested(3)})
    before.to_parquet(tmp_path / "rounds.parquet")
    old = tables.trials_frame(Grid([result("old", some_tested(3))]), before)
    old.assign(status="open").to_parquet(tmp_path / "trials.parquet")
    _, trials = tables.frames(Grid([]), {}, tmp_path, [])
    assert trials[["trial", "status"]].values.tolist() == [["old", "stopped"]]


@pytest.mark.parametrize(("tested", "at"), [((2, 3), 3), ((2,), 2), ((), None)])
def test_the_last_figures_on_test_rows_stand_with_their_round(tested, at):
    frame = tables.rounds_frame({"a": some_tested(*tested)})
    found = tables.trial_summary(frame)
    assert (found["rounds"], found["last_val_acc"], found["best_round"]) == (3, pytest.approx(0.6), 3)
    said = tables.tested(pd.Series(found))
    if at is None:
        assert "test_round" not in found and said == {}
    else:
        assert (found["test_round"], found["last_test_acc"]) == (at, pytest.approx(0.1 * at))
        assert found["last_test_acc_std"] == 0.1
        assert said == {"test_acc": found["last_test_acc"]} | ({"test_round": 2} if at == 2 else {})
        assert math.isnan(found["best_test_acc"]) == (at == 2)


def test_a_longer_search_keeps_what_was_tested_before(tmp_path):
    """Rounds 2 and 3 are trained again from a checkpoint after round 1; 3 is not the last one any more."""
    before = tables.rounds_frame({"old": some_tested(3)})
    before.to_parquet(tmp_path / "rounds.parquet")
    tables.trials_frame(Grid([result("old", some_tested(3))]), before).to_parquet(tmp_path / "trials.parquet")
    again = some_tested(5, rounds=5)[1:]
    rounds, trials = tables.frames(Grid([result("new", again)]), {"new": again}, tmp_path, ["old"])
    assert rounds["round"].tolist() == [1, 2, 3, 4, 5] and set(rounds["trial"]) == {"new"}
    assert rounds["test_acc"].dropna().round(3).tolist() == [0.3, 0.5] and rounds["val_acc"].notna().all()
    assert trials["test_round"].tolist() == [5] and list(rounds)[:2] == ["trial", "round"]
