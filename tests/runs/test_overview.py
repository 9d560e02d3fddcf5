"""How a search stands, by what its folder says while it runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fedtune.commands import status
from fedtune.core.terminal import console
from fedtune.runs import overview, reading
from fedtune.runs.files import COMPARISON, RunFiles
from fedtune.runs.logs import Followed

RECORD: dict[str, Any] = {
    "algorithm": "gfpl",
    "searcher": "tpe",
    "scheduler": "none",
    "started": "now",
    "trials": 5,
    "concurrent": 1,
    "space": {"lr": "0.1..1"},
    "scenario": {"rounds": 2},
    "budget": {"unit": "rounds", "limit": 2, "since": 1},
    "rungs": [],
}
CHEAP, DEAR, SLOW = (
    {"val_acc": acc, "comm_mb": mb, "time_total_s": 3.0, "excesses": [mb / 5 - 1]}
    for acc, mb in ((0.6, 2.0), (0.9, 8.0), (0.7, 5.0))
)


def shown(folder: Path, trials: dict[str, dict[str, Any]], **record: Any) -> list[str]:
    """The lines of a search that is over, with these last rows."""
    RunFiles(folder).write("finished", **RECORD | record)
    for name, last in trials.items():
        (folder / f"gfpl-{name}").mkdir()
        row = {"trial_id": name, "training_iteration": 2, "complete": True, "config": {"lr": 0.5}} | last
        (folder / f"gfpl-{name}" / "result.json").write_text(json.dumps(row) + "\n")
    page = console(width=150, file=io.StringIO(), record=True)
    page.print(status.shown(overview.Reader().read(folder)))
    return [" ".join(line.split()) for line in page.export_text().splitlines()]


@pytest.mark.parametrize(
    ("trials", "record", "lines"),
    [
        (  # those that keep a constraint come first
            {"dear": DEAR, "cheap": CHEAP, "slow": SLOW},
            {"constraints": ["comm_mb<=5"]},
            [
                "highest last val_acc, comm_mb<=5",
                "trial status round val_acc % comm_mb test_acc % kept lr",
                "slow finished 2/2 70.00 5.0000 yes 0.5",
                "cheap finished 2/2 60.00 2.0000 yes 0.5",
                "dear finished 2/2 90.00 8.0000 no 0.5",
            ],
        ),
        (
            {"a": CHEAP},
            {"objectives": ["val_acc", "comm_mb"], "constraints": ["seconds<=9"]},
            [
                "trial status round val_acc % comm_mb seconds test_acc % kept lr",
                "a finished 2/2 60.00 2.0000 3.0000 yes 0.5",
            ],
        ),
        (
            {"a": {"val_acc": 0.5}},
            {},
            ["highest last val_acc", "trial status round val_acc % test_acc % lr", "a finished 2/2 50.00 0.5"],
        ),
        (  # the test figure of what is searched for comes before test accuracy
            {"a": {"val_acc": 0.5, "val_acc_worst10": 0.3, "test_acc": 0.4, "test_acc_worst10": 0.2}},
            {"objectives": ["val_acc_worst10"]},
            [
                "highest last val_acc_worst10",
                "trial status round val_acc_worst10 % test_acc_worst10 % test_acc % lr",
                "a finished 2/2 30.00 20.00 40.00 0.5",
            ],
        ),
        (  # a program that reports no test accuracy
            {"a": {"val_acc": 0.5}},
            {"metrics": {"val_acc": {"split": "validation", "mode": ""}}},
            ["trial status round val_acc % lr", "a finished 2/2 50.00 0.5"],
        ),
    ],
)
def test_the_best_trials_stand_under_what_they_are_judged_by(
    trials: dict[str, Any], record: dict[str, Any], lines: list[str], tmp_path: Path
) -> None:
    assert shown(tmp_path, trials, **record)[-len(lines) :] == lines


def log(folder: Path, rounds: int, **more: Any) -> str:
    """A trial's log, written anew."""
    lines = [
        json.dumps({"trial_id": "a", "training_iteration": t, "config": {"lr": 0.5}, "val_acc": t / 10} | more) + "\n"
        for t in range(1, rounds + 1)
    ]
    (folder / "gfpl-a").mkdir(exist_ok=True)
    (folder / "gfpl-a" / "result.json").write_text("".join(lines))
    return "".join(lines)


def test_a_log_that_grows_is_read_on_and_a_line_that_is_half_written_waits(tmp_path: Path) -> None:
    whole = log(tmp_path, 9)
    file, followed = tmp_path / "gfpl-a" / "result.json", Followed(tmp_path)
    for end in (*range(0, len(whole), 40), len(whole)):
        file.write_text(whole[:end])
        seen = [row["training_iteration"] for row in followed.rows("training_iteration", [2.0, 4.0]).get("a", [])]
        done = whole[:end].count("\n")
        assert seen == sorted({*[r for r in (2, 4) if r <= done], *[done] * bool(done)})


def test_a_log_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    log(tmp_path, 5)
    followed = Followed(tmp_path)
    followed.rows("training_iteration", [])
    log(tmp_path, 7, val_acc=0.25)  # longer, and of other numbers: as population based training does
    assert [(row["training_iteration"], row["val_acc"]) for row in followed.rows("training_iteration", [])["a"]] == [
        (7, 0.25)
    ]
    log(tmp_path, 2)
    assert [row["training_iteration"] for row in followed.rows("training_iteration", [])["a"]] == [2]


def test_a_log_that_vanishes_while_it_is_looked_at_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a search that goes on moves logs to `lost`."""
    log(tmp_path, 2)
    (read, unread), new_rows = (Followed(tmp_path), Followed(tmp_path)), reading.new_rows

    def vanished(file: Path, start: int) -> tuple[list[dict[str, Any]], int]:
        file.unlink()
        return new_rows(file, start)

    before = read.rows("training_iteration", [])
    log(tmp_path, 5)
    monkeypatch.setattr(reading, "new_rows", vanished)
    assert read.rows("training_iteration", []) == before != {}
    log(tmp_path, 5)
    assert unread.rows("training_iteration", []) == {}


def test_what_is_kept_of_a_log_tells_rungs_the_last_round_and_the_last_test(tmp_path: Path) -> None:
    rows = [{"trial_id": "a", "training_iteration": t, "val_acc": 0.1 * t} for t in range(1, 7)]
    rows[2]["test_acc"] = 0.25
    rows[-1]["diverged"] = True
    (tmp_path / "gfpl-a").mkdir()
    (tmp_path / "gfpl-a" / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = Followed(tmp_path).rows("training_iteration", [2.0])["a"]
    assert [row["training_iteration"] for row in kept] == [2, 3, 5, 6]


@pytest.mark.parametrize(("objective", "best", "value"), [("val_acc", "b", 0.5), ("val_loss", "a", 0.1)])
def test_a_rung_counts_who_went_on_and_who_was_stopped_and_names_the_best_there(
    objective: str, best: str, value: float, tmp_path: Path
) -> None:
    RunFiles(tmp_path).write("finished", **RECORD | {"rungs": [2], "objectives": [objective]})
    figures = {"a": [(0.1, 0.3), (0.2, 0.1), (0.9, 0.0)], "b": [(0.1, 0.3), (0.5, 0.2)], "c": [(0.8, 0.0)]}
    for name, each in figures.items():
        rows = [
            {"trial_id": name, "training_iteration": t, "complete": t == 3, "val_acc": acc, "val_loss": loss}
            for t, (acc, loss) in enumerate(each, 1)
        ]
        (tmp_path / f"gfpl-{name}").mkdir()
        (tmp_path / f"gfpl-{name}" / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = overview.Reader().search(tmp_path).rungs
    assert found == overview.RungCount("round 2", reached=2, went_on=1, stopped=1, best=best, value=value)


def test_a_choice_by_more_seeds_tells_how_far_it_is(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.write("running", **RECORD | {"choose_seeds": 3})
    said = []
    with files.lock():
        for done in (None, 0, 4):
            if done is not None:
                files.choice_folder.mkdir(exist_ok=True)
                for i in range(done):
                    (files.choice_folder / f"{i}.json").write_text("{}")
            said.append([line for line in overview.Reader().read(tmp_path).lines if "more seeds" in line])
        files.final_folder.mkdir()
        said.append([line for line in overview.Reader().read(tmp_path).lines if "more seeds" in line])
    words = "the best trials are trained on more seeds:"
    assert said == [[], [f"{words} 0 of 6 runs done"], [f"{words} 4 of 6 runs done"], []]


def test_what_a_worker_does_stands_in_its_trials_last_round(tmp_path: Path) -> None:
    more = {"hostname": "node", "pid": 7, "time_this_iter_s": 1.5, "timestamp": 100.0}
    files = RunFiles(tmp_path)
    files.write("running", **RECORD)
    log(tmp_path, 1, **more)
    with files.lock():
        found = overview.Reader().read(tmp_path)
    assert isinstance(found, overview.SearchStatus) and not found.over
    assert found.workers == [overview.Worker("a", "node, process 7", 1, 1.5, 100.0)]
    assert overview.Reader().read(tmp_path).state.startswith(overview.GONE), "without the lock"


def test_a_comparison_names_each_of_its_searches(tmp_path: Path) -> None:
    """Fourteen tables without a name are of no use; their folders' names can be typed after `status`."""
    folders = ["local", "local+2"]
    for name in folders:
        (tmp_path / name).mkdir()
        shown(tmp_path / name, {"a": {"val_acc": 0.5}}, algorithm="local")
    names = {"algorithms": ["fedavg", "local"], "control": ["fedavg", "local"]}
    RunFiles(tmp_path, COMPARISON).write("finished", searches=2, **names)
    page = console(width=150, file=io.StringIO(), record=True)
    page.print(status.shown(overview.Reader().read(tmp_path)))
    lines = [line.strip() for line in page.export_text().splitlines()]
    for k, name in enumerate(folders, 1):
        assert any(line.startswith(f"{name} (the control, search {k} of 2): local, ") for line in lines)
