"""A search on data and a partition of one's own: workers need neither file, and the run goes on from the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.commands import refusal
from support.user_data import saved, wards

from fedtune.commands import replay, search
from fedtune.experiment.scenario import Scenario
from fedtune.runs.files import RunFiles
from fedtune.runs.folder import StudyFolder
from fedtune.tuning import driver

QUICK = "--algo fedavg --rounds 2 --trials 1 --scheduler none --max-concurrent 1 --final-seeds 0 --no-dashboard"


@pytest.mark.long  # a search of Ray's
@pytest.mark.usefixtures("one_ray")
def test_workers_and_a_replay_need_no_file_and_a_changed_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(240)
    data = saved(tmp_path / "w.npz", **wards())
    partition = saved(tmp_path / "p.npz", row=rows, client=rows % 4, split=rows // 4 % 3)
    fit, kept = driver.fit, {file: file.read_bytes() for file in (data, partition)}

    def without_files(*args: Any, **options: Any) -> Any:
        for file in kept:
            file.unlink()
        try:
            return fit(*args, **options)
        finally:
            for file, content in kept.items():
                file.write_bytes(content)

    monkeypatch.setattr(driver, "fit", without_files)
    words = f"{QUICK} --dataset {data} --partition {partition} --storage-path {tmp_path} --name run"
    assert search.main(words.split()) == 0
    assert "data: w.npz, 240 rows of 3 classes, 6 owners, numbers 5" in capsys.readouterr().out
    run = tmp_path / "run"
    assert pd.read_parquet(RunFiles(run).trials_file)["status"].tolist() == ["finished"]
    record = json.loads(RunFiles(run).record_file.read_text())
    named = {entry["name"]: entry["path"] for entry in record["own"]}
    assert named == {"w.npz": str(data), "p.npz": str(partition)} and record["scenario"]["clients"] == 4
    assert replay.main([str(run), "--no-dashboard"]) == 0
    assert "are the same bit for bit" in capsys.readouterr().out
    saved(partition, row=rows, client=rows % 5, split=rows // 5 % 3)
    line = refusal(replay.main, f"{run} --name other", capsys)
    assert f"was made with another version of {partition}, which has changed since; restore it" in line
    data.unlink()
    assert StudyFolder(run).scenario.clients == 4  # whoever only reads needs no file


def test_a_record_of_elsewhere_is_read_without_the_files() -> None:
    kept = Scenario(dataset="elsewhere.npz", partition="theirs.npz", clients=7, model="mlp")
    assert (kept.clients, kept.dataset) == (7, "elsewhere.npz")
