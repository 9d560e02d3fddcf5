"""What goes wrong in a user's own code ends a trial at once, and is said once, with the line of their file."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from support.actors import LocalActor

from fedtune.commands import search
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


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (KeyError("odd"), False),
        (IndexError("index out of range in self"), False),
        (AssertionError(), False),
        (OSError("disk"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: unknown"), True),
        (torch.OutOfMemoryError("full"), True),
    ],
)
def test_what_would_come_again_ends_a_trial_and_what_may_heal_is_tried_again(
    error: Exception, heals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    actor = LocalActor({})
    actor.train()
    monkeypatch.setattr(actor.run, "step", fails)
    if heals:
        with pytest.raises(type(error)):
            actor.train()
        return
    row = actor.train()
    assert row["done"] and row["broken"] and "this is a bug in fedtune" in row["reason"]
    assert actor.reset({}) and "broken" not in actor.train()


def test_a_trial_that_cannot_be_set_up_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtune.engine.built_in.MultiSeedSimulation", lambda *_: {}["odd"])
    row = LocalActor({}).train()
    assert row["done"] and row["broken"] and "KeyError: 'odd'" in row["reason"]
