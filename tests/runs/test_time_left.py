"""How long a run will take yet: trials, the final check, and what a comparison has before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedtune.runs import time_left
from fedtune.runs.files import COMPARISON, REPRODUCTION, RunFiles

RECORD: dict[str, Any] = {"trials": 4, "concurrent": 2, "options": {"final_seeds": 5}, "state": "running"}
ROWS = {"a": [{"time_total_s": 10.0}], "b": [{"time_total_s": 4.0}]}


def runs(folder: Path, number: int, seconds: float) -> None:
    folder.mkdir(exist_ok=True)
    for i in range(number):
        rounds = [{"seconds": seconds / 2, "eval_seconds": seconds / 4}] + [{"seconds": seconds / 4, "eval_seconds": 0}]
        (folder / f"{i}.json").write_text(json.dumps({"rounds": rounds, "reason": ""}))


def test_a_search_has_its_trials_and_its_final_check_before_it(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert time_left.of_search(files, RECORD, {}, {"a": "running"}) is None
    how = {"a": "finished", "b": "stopped"}
    assert time_left.of_search(files, RECORD, ROWS, how) == 2 * 7 / 2 + 10 * 10 / 2, "two trials, ten whole runs"
    without = RECORD | {"options": {"final_seeds": 0}}
    assert time_left.of_search(files, without, ROWS, how) == 7
    assert time_left.of_search(files, without, ROWS, {"a": "finished", "b": "running"}) == ((10 - 4) + 2 * 10) / 2


def test_a_choice_by_more_seeds_comes_between_the_two(tmp_path: Path) -> None:
    files, record = RunFiles(tmp_path), RECORD | {"choose_seeds": 3}
    over = {"a": "finished", "b": "stopped"}
    assert time_left.of_search(files, record, ROWS, over) == 2 * 7 / 2 + 3 * 2 * 10 / 2 + 10 * 10 / 2
    runs(files.choice_folder, 4, 6.0)
    assert time_left.of_search(files, record, ROWS, over) == 2 * 6 / 2 + 10 * 10 / 2, "its trials are over"
    runs(files.choice_folder, 9, 6.0)
    assert time_left.of_search(files, record, ROWS, over) == 10 * 10 / 2, "the next three were asked, too"
    runs(files.final_folder, 4, 6.0)
    assert time_left.of_search(files, record, ROWS, over) == 6 * 6 / 2


@pytest.mark.parametrize(("done", "left"), [(0, 50.0), (4, 18.0), (9, 3.0), (10, 0.0)])
def test_in_the_final_check_what_is_left_is_its_runs(tmp_path: Path, done: int, left: float) -> None:
    """Also of a search that a time limit cut short, and of one that is resumed there."""
    files = RunFiles(tmp_path)
    runs(files.final_folder, done, 6.0)
    assert time_left.of_search(files, RECORD, ROWS, {"a": "finished", "b": "stopped"}) == pytest.approx(left)
    (files.final_folder / "half.json").write_text('{"rounds": [')
    assert time_left.of_search(files, RECORD, ROWS, {"a": "finished", "b": "stopped"}) is not None


def test_a_reproduction_has_its_runs_before_it(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, REPRODUCTION)
    assert time_left.of_reproduction(files, {"runs": 8, "concurrent": 2}) is None, "nothing tells how long one takes"
    runs(files.runs_folder, 2, 6.0)
    assert time_left.of_reproduction(files, {"runs": 8, "concurrent": 2}) == pytest.approx(6 * 6.0 / 2)
    assert time_left.of_reproduction(files, {"runs": 8}) == pytest.approx(6 * 6.0), "of a record that does not say"


def test_a_comparison_has_searches_and_runs_on_fresh_seeds_before_it(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, COMPARISON)
    record = {"algorithms": ["x", "y", "z"], "top_k": 1, "seeds": 5, "trials": 4}
    begun = [RunFiles(tmp_path / name) for name in ("x", "y")]
    begun[0].write("finished", seconds=40.0, concurrent=2)
    begun[1].write("running", concurrent=2)
    fresh = 3 * 2 * 5
    assert time_left.of_comparison(files, record, begun[1:], [None]) is None, "the first search is not over"
    assert time_left.of_comparison(files, record, begun, [None]) is None
    assert time_left.of_comparison(files, record, begun, [15.0]) == 15 + 40 + fresh * 20 / 2
    begun = [RunFiles(tmp_path / name) for name in ("x", "y", "z")]
    for search in begun:
        search.write("finished", seconds=40.0, concurrent=2)
    runs(files.evaluations_folder, 12, 6.0)
    assert time_left.of_comparison(files, record, begun, []) == pytest.approx((fresh - 12) * 6 / 2)
