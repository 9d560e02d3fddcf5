"""Study folders as dataframes, whatever state the run is in."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.broken_off import broken_off

from fedtune.analysis import frames
from fedtune.core.about import FORMAT
from fedtune.core.errors import UserError
from fedtune.runs.files import RunFiles

RECORD = {"format": FORMAT, "algorithm": "fedavg", "scenario": {"dataset": "digits", "rounds": 3}}


def row(trial: str, t: int, value: float, **more: object) -> dict:
    figures = {"val_acc": value, "val_loss": 1.0, "test_acc": value / 2, "test_acc_std": 0.1, "train_loss": 1.0}
    costs = {"seconds": 1.0, "eval_seconds": 0.5, "comm_mb": 2.0 * t, "config": {"lr": 0.1}}
    rays = {"trial_id": trial, "training_iteration": t, "complete": t == 3, "timestamp": t}
    return {"round": t} | figures | costs | rays | more


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """One of each: finished with a round told twice, stopped, diverged, failed, running, waiting."""
    rows = {
        "a": [row("a", 1, 0.2), row("a", 2, 0.5), row("a", 2, 0.6), row("a", 3, 0.4)],
        "b": [row("b", 1, 0.1)],
        "c": [row("c", 1, 0.3), {"trial_id": "c", "training_iteration": 2, "diverged": True, "reason": "nan"}],
        "d": [row("d", 1, 0.3)],
        "e": [row("e", 1, 0.7)],
    }
    how = {"a": "TERMINATED", "b": "TERMINATED", "c": "TERMINATED", "d": "ERROR", "e": "RUNNING", "f": "PENDING"}
    return broken_off(tmp_path / "logs", RECORD, rows, how)


def written(run: Path, statuses: dict[str, str]) -> None:
    """The tables as a driver of an earlier version has left them, with a trial of the search that this one extends."""
    trials, rounds = frames.load(run)
    trials = trials[trials["trial"].isin(statuses)].drop(columns="run")
    trials = pd.concat([trials, trials.iloc[:1].assign(trial="z")])
    trials.assign(status=[*statuses.values(), "stopped"]).to_parquet(run / "trials.parquet", index=False)
    rounds.drop(columns="run").to_parquet(run / "rounds.parquet", index=False)


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("running", ["running", "waiting"]),
        ("abandoned", ["open", "open"]),
        ("failed", ["open", "open"]),
        ("interrupted", ["open", "open"]),
        ("finished", ["stopped", "stopped"]),  # by the clock
        ("nothing found", ["stopped", "stopped"]),
    ],
)
def test_a_trial_that_had_not_ended_is_open_unless_the_search_is_over(
    state: str, left: list[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFiles, "driven", state == "running")
    (logs / "run.json").write_text(json.dumps(RECORD | {"state": state.replace("abandoned", "running")}))
    ended = ["finished", "stopped", "diverged", "failed"]
    assert frames.load(logs)[0]["status"].tolist() == [*ended, *left]
    written(logs, dict(zip("abcdef", [*ended, "stopped", "not started"], strict=True)))
    of_table = {"finished": ["stopped", "not started", "stopped"], "interrupted": ["open", "open", "stopped"]}
    of_table |= {"nothing found": of_table["finished"]}  # of the others an earlier version's tables may be too old
    assert frames.load(logs)[0]["status"].tolist() == [*ended, *of_table.get(state, left)]


def test_a_run_without_tables_is_read_from_its_logs(logs: Path) -> None:
    trials, rounds = frames.load(logs)
    found = trials.set_index("trial")
    a = found.loc["a"]
    assert (a["rounds"], a["best_round"], a["best_val_acc"], a["last_val_acc"]) == (3, 2, 0.6, 0.4)
    assert (a["seconds"], a["comm_mb"], a["config/lr"], a["run"]) == (4.5, 6.0, 0.1, "logs")
    assert found.loc["f", "rounds"] == 0 and found.loc["c", "reason"] == "nan"
    assert not rounds.duplicated(["trial", "round"]).any()
    assert rounds.query("trial == 'a' and round == 2")["val_acc"].item() == 0.6


def test_columns_and_dtypes_are_the_documented_ones_in_every_state(logs: Path, tmp_path: Path) -> None:
    empty = broken_off(tmp_path / "empty", RECORD, {}, {})
    for run in (logs, empty):
        trials, rounds = frames.load(run)
        for frame, columns in ((trials, frames.TRIALS), (rounds, frames.ROUNDS)):
            assert list(frame.columns[: len(columns)]) == list(columns)
            assert {n: str(frame[n].dtype) for n in columns} == columns
    assert len(frames.load(empty)[0]) == 0


def test_several_runs_stand_below_one_another(logs: Path, tmp_path: Path) -> None:
    over = broken_off(tmp_path / "over", RECORD, {}, {})
    trials, rounds = frames.load(logs)
    for name, frame in (("trials", trials), ("rounds", rounds)):
        kept = frame.drop(columns=["run"])
        kept = kept.assign(status=kept["status"].astype(str)) if "status" in kept else kept
        kept.to_parquet(over / f"{name}.parquet", index=False)
    both = frames.load(logs, over)
    assert both[0]["run"].value_counts().to_dict() == {"logs": 6, "over": 6}
    for i, one in enumerate((trials, rounds)):
        again = both[i][both[i]["run"] == "over"].assign(run="logs").reset_index(drop=True)
        pd.testing.assert_frame_equal(again, one)


def test_hyperparameters_are_those_that_vary(logs: Path) -> None:
    trials, _ = frames.load(logs)
    assert frames.hyperparameters(trials) == []
    trials.loc[0, "config/lr"] = 0.3
    assert frames.hyperparameters(trials) == ["lr"]


def test_a_folder_that_is_no_search_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(f'{{"format": {FORMAT}}}')
    with pytest.raises(UserError, match="run.json is missing or damaged"):
        frames.load(tmp_path)
    with pytest.raises(UserError, match="at least one study folder"):
        frames.load()
