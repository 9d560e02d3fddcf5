"""What goes wrong in a user's own code ends a trial at once, and is said once, with the line of their file."""

import json
from pathlib import Path

import pandas as pd
import pytest

from fedtune import search
from fedtune.runs.files import RunFiles

FAILING = '''"""Fails in its last round where lam is large: in its first it would be refused before anything begins."""
from dataclasses import dataclass
from fedtune import Algorithm, hyper
@dataclass(frozen=True)
class Failing(Algorithm):
    lam: float = hyper({default}, 0.01, 1.0, help="weight")
    shared = ("body", "head")
    def aggregate(self, server, up, task):
        if self.lam > 0.1 and task.t == 4:
            raise ValueError("too large")
        return super().aggregate(server, up, task)
SPACES = {{"default": [{{"lam": 0.1}}, {{"lam": 0.2}}, {{"lam": 0.3}}]}}
'''
QUICK = "--clients 4 --rounds 4 --scheduler none --max-concurrent 1 --final-seeds 0 --no-dashboard --name run"


def searched(folder: Path, default: float, trials: int) -> tuple[int, Path]:
    (folder / "failing.py").write_text(FAILING.format(default=default))
    words = f"--algo {folder}/failing.py {QUICK} --storage-path {folder} --trials {trials}"
    return search.main(words.split()), folder / "run"


@pytest.mark.usefixtures("one_ray")
def test_trials_that_fail_are_tried_once_and_said_once(tmp_path, capsys):
    status, run = searched(tmp_path, 0.1, 3)
    out, err = capsys.readouterr()
    assert status == 0 and "Traceback" not in out + err
    trials = pd.read_parquet(RunFiles(run).trials_file)
    assert trials["status"].tolist() == ["finished", "failed", "failed"]
    line = f"{tmp_path}/failing.py:10: ValueError: too large"
    assert trials["reason"].tolist() == ["", line, line]
    assert err.count("too large") == 1 and f"note: 2 of 3 trials failed: {line}" in err
    logged = {f.parent.name: f.read_text().splitlines() for f in run.glob("*/result.json")}
    assert sorted(map(len, logged.values())) == [4, 4, 4] and not [*run.glob("*/error.txt")]


@pytest.mark.usefixtures("one_ray")
def test_a_search_of_which_every_trial_fails_ends_with_one_line_and_status_2(tmp_path, capsys):
    status, run = searched(tmp_path, 0.5, 1)
    out, err = capsys.readouterr()
    assert status == 2 and err.splitlines()[-1] == (
        f"error: every trial failed: {tmp_path}/failing.py:10: ValueError: too large"
    )
    assert "Traceback" not in out + err
    assert json.loads(RunFiles(run).record_file.read_text())["state"] == "nothing found"
