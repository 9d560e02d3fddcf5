"""What lies in a study's folder is checked where it is read: entries, sizes, depth, pages of tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fedtune.core.errors import UserError
from fedtune.runs import frames, logs, reading, schema

KEPT = Path(__file__).parent / "kept"
RECORD = "run.json"
EXAMPLE = Path(__file__).parents[2] / "analysis" / "example"


@pytest.mark.parametrize("file", [*EXAMPLE.glob("*/run.json"), *EXAMPLE.glob("*/compare.json")])
def test_records_and_best_configurations_are_read_as_they_are(file: Path) -> None:
    assert reading.record(file) == json.loads(file.read_text())
    best = file.with_name("best.yaml")
    assert not best.exists() or reading.best(best) == yaml.safe_load(best.read_text())


@pytest.mark.parametrize(
    ("entry", "value", "why"),
    [
        ("seed", [1], "its seed: should be a valid integer"),
        ("seed", -1, "its seed: should be greater than or equal to 0"),
        ("space", 3, "its space: should be a valid dictionary"),
        ("hardware", "x", "its hardware: should be a valid dictionary"),
        ("declared", {"lr": {"low": 1.0}}, "its declared.lr.default: field required"),
        ("declared", {"lr": {"default": 1, "low": "x"}}, "its declared.lr.low: should be a valid number"),
        ("declared", {"lr": {"default": 1, "high": float("inf")}}, "its declared.lr.high: should be a finite number"),
        ("declared", {"lr": {"default": 1, "choices": [[]]}}, "its declared.lr.choices.0: it must be text, a number"),
        ("final", [{}], "its final.0.configuration: field required"),
        (
            "final",
            [{"configuration": "best", "seed": 1, "test_acc": "x"}],
            "its final.0.test_acc: should be a valid number",
        ),
        (
            "final",
            [{"configuration": "best", "seed": 1, "reason": "", "mb": "x"}],
            "its final.0: its mb must be a number",
        ),
        ("choice", [{"trial": "a", "own": 0.5}], "its choice.0.reason: field required"),
        ("choice", [{"trial": "a", "own": "x", "reason": ""}], "its choice.0.own: should be a valid number"),
        ("choice", [{"trial": "a", "own": 1.0, "reason": "", "val_acc": []}], "its choice.0: its val_acc must be a nu"),
        ("scenario", {"rounds": 3, "lr": [1]}, "its scenario.lr: it must be text, a number, true, false"),
        ("scenario", None, "its scenario: should be a valid dictionary"),
        (
            "budget",
            {"unit": "x", "limit": 1, "since": 1},
            "its budget.unit: should be 'rounds', 'mb', 'seconds' or 'sim_seconds'",
        ),
        ("objectives", [], "its objectives: list should have at least 1 item"),
        ("trials", True, "its trials: should be a valid integer"),
        (
            "pinned",
            {"lr": {"a": 1}},
            "its pinned.lr: it must be text, a number, true, false or null, but is a mapping",
        ),
        ("options", {"set": {"lr": [[1]]}}, "its options.set: it must be text"),
    ],
)
def test_an_entry_of_another_kind_is_named(entry: str, value: Any, why: str) -> None:
    good = json.loads((KEPT / "run.json").read_text())
    with pytest.raises(ValueError) as caught:
        schema.checked(RECORD, good | {entry: value})
    assert str(caught.value).startswith(why)


def test_what_is_not_declared_passes() -> None:
    assert schema.checked(RECORD, {"of a later version": [{"a": 1}]}) == {"of a later version": [{"a": 1}]}


@pytest.mark.parametrize("text", ["? [a]\n: 1", "a: 2001-99-99", "- 1", "!!python/object:os.x {}", "\t"])
def test_a_best_configuration_is_plain(text: str, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(text)
    with pytest.raises(ValueError):
        reading.best(tmp_path / "best.yaml")


def test_a_page_that_was_changed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rounds.parquet"
    frame = pd.DataFrame({"trial": ["a"] * 500, "round": range(500), "val_acc": [i / 999 for i in range(500)]})
    reading.write_table(frame, file)
    pd.testing.assert_frame_equal(reading.table(file), frame)
    content = file.read_bytes()
    told = 0
    for at in range(0, len(content), 29):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            pd.testing.assert_frame_equal(reading.table(file), frame)
        except UserError as error:
            told += str(error).startswith(f"{file} is damaged (")
    assert told > len(content) / 29 / 2


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (pd.DataFrame({"trial": ["a"]}), "it has no column round"),
        (pd.DataFrame({"trial": ["a"], "round": ["one"]}), "its column round must hold a number, but holds"),
        (pd.DataFrame({"trial": [1], "round": [1]}), "its column trial must hold text, but holds int64"),
        (None, "it does not exist"),
    ],
)
def test_a_table_without_what_is_needed_is_told(frame: pd.DataFrame | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    if frame is not None:
        frame.to_parquet(file)
    with pytest.raises(UserError) as caught:
        reading.table(file, ("trial", "round"), {"trial": reading.TEXT, "round": reading.NUMBER})
    assert f"{file} is damaged ({why}" in str(caught.value)


def test_a_damaged_table_gives_way_to_what_ray_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(KEPT, tmp_path / "run")
    trials, rounds = frames.load(run)
    (run / "rounds.parquet").write_bytes(b"PAR1")
    again, from_logs = frames.load(run)
    by = ["trial", "round"]
    pd.testing.assert_frame_equal(
        from_logs.sort_values(by, ignore_index=True)[[*by, "val_acc", "test_acc"]],
        rounds.sort_values(by, ignore_index=True)[[*by, "val_acc", "test_acc"]],
    )
    assert sorted(again["last_val_acc"]) == sorted(trials["last_val_acc"])
    assert "rounds.parquet is damaged" in capsys.readouterr().err


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    row = {"trial_id": "a", "training_iteration": 1, "timestamp": 1, "val_acc": 0.5, "config": {"lr": 0.1}}
    bad = ["[]", "3", '{"trial_id": [1]}', '{"trial_id": "a", "training_iteration": "x"}', "{", '{"config": 3}']
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "result.json").write_bytes("\n".join([*bad, json.dumps(row)]).encode() + b"\n\xff\xfe")
    assert logs.logged(tmp_path) == {"a": [row]}
    (tmp_path / "suggestions.jsonl").write_text(
        '{"trial": ["a"], "config": {}}\n{"trial": "b", "config": {"lr": 1}}\n[1]\n'
    )
    assert logs.suggestions(tmp_path) == [{"trial": "b", "config": {"lr": 1}}]
