"""How a search stands, by what its folder says while it runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from fedtune.core.terminal import console
from fedtune.runs.files import RunFiles
from fedtune.runs.overview import overview

RECORD: dict[str, Any] = {
    "algorithm": "gfpl",
    "searcher": "tpe",
    "scheduler": "none",
    "started": "now",
    "trials": 5,
    "concurrent": 1,
    "space": {"lr": "0.1 … 1"},
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
    page.print(overview(folder)[0])
    return [" ".join(line.split()) for line in page.export_text().splitlines()]


def test_a_search_with_a_constraint_shows_what_it_is_on_and_those_that_keep_it_first(tmp_path: Path) -> None:
    *_, title, head, first, second, third = shown(
        tmp_path, {"dear": DEAR, "cheap": CHEAP, "slow": SLOW}, constraints=["comm_mb<=5"]
    )
    assert title == "highest last val_acc, comm_mb<=5"
    assert head == "trial status round val_acc comm_mb test_acc kept lr"
    assert [first, second, third] == [
        "slow finished 2/2 0.7000 5.0000 yes 0.5",
        "cheap finished 2/2 0.6000 2.0000 yes 0.5",
        "dear finished 2/2 0.9000 8.0000 no 0.5",
    ]


def test_seconds_and_a_second_objective_are_shown_too(tmp_path: Path) -> None:
    *_, head, first = shown(tmp_path, {"a": CHEAP}, objectives=["val_acc", "comm_mb"], constraints=["seconds<=9"])
    assert head == "trial status round val_acc comm_mb seconds test_acc kept lr"
    assert first == "a finished 2/2 0.6000 2.0000 3.0000 yes 0.5"


def test_a_search_for_accuracy_alone_has_no_such_columns(tmp_path: Path) -> None:
    *_, title, head, _ = shown(tmp_path, {"a": {"val_acc": 0.5}})
    assert (title, head) == ("highest last val_acc", "trial status round val_acc test_acc lr")


def test_a_program_that_reports_no_test_accuracy_has_no_such_column(tmp_path: Path) -> None:
    *_, head, first = shown(tmp_path, {"a": {"val_acc": 0.5}}, metrics={"val_acc": {"split": "validation", "mode": ""}})
    assert (head, first) == ("trial status round val_acc lr", "a finished 2/2 0.5000 0.5")
