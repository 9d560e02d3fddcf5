"""One line of Python in a user's program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedtune import report


def test_outside_a_trial_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDTUNE_ROWS", raising=False)
    report(round=1, val_acc="no number")  # type: ignore[arg-type]


def test_in_a_trial_it_appends_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTUNE_ROWS", str(tmp_path / "rows"))
    report(round=1, val_acc=0.5)
    report(round=np.int64(2), val_acc=np.float32(0.25), loss=3)
    rows = [json.loads(line.removeprefix("fedtune ")) for line in (tmp_path / "rows").read_text().splitlines()]
    assert rows == [{"round": 1, "val_acc": 0.5}, {"round": 2, "val_acc": 0.25, "loss": 3}]


def test_what_is_no_number_is_pythons_own_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTUNE_ROWS", str(tmp_path / "rows"))
    with pytest.raises(TypeError, match="val_acc must be a number, but is None"):
        report(val_acc=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size 1"):
        report(val_acc=np.ones(3))  # type: ignore[arg-type]
    assert not (tmp_path / "rows").exists()


def test_it_is_imported_without_anything_heavy() -> None:
    script = "import sys; from fedtune import report; report(round=1, a=1.0); "
    script += "assert not {'torch', 'ray', 'numpy', 'pydantic', 'pandas', 'json'} & set(sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300, env=environment)
