"""A user's own code in a search: it begins anew in each trial, and what goes wrong there is said once."""

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
    assert status == 0 and err.count("Traceback (most recent call last):") == 1 and "Traceback" not in out
    trials = pd.read_parquet(RunFiles(run).trials_file)
    assert trials["status"].tolist() == ["finished", "failed", "failed"]
    line = f"{tmp_path}/failing.py:10: ValueError: too large"
    assert trials["reason"].tolist() == ["", line, line]
    said = err.splitlines()
    at = said.index(f"note: 2 of 3 trials failed: {line}")
    assert said[at + 1 : at + 4 : 2] == ["Traceback (most recent call last):", '    raise ValueError("too large")']
    assert said[at + 2] == f'  File "{tmp_path}/failing.py", line 10, in aggregate' and err.count("too large") == 3
    logged = {f.parent.name: f.read_text().splitlines() for f in run.glob("*/result.json")}
    assert sorted(map(len, logged.values())) == [4, 4, 4] and not [*run.glob("*/error.txt")]


@pytest.mark.long  # a search of Ray's
@pytest.mark.usefixtures("one_ray")
def test_a_search_of_which_every_trial_fails_ends_with_a_line_and_status_2(tmp_path, capsys):
    status, run = searched(tmp_path, 0.5, 1)
    out, err = capsys.readouterr()
    assert status == 2 and err.splitlines()[-1] == (
        f"error: every trial failed: {tmp_path}/failing.py:10: ValueError: too large"
    )
    assert (out + err).count("Traceback") == 1 and f'  File "{tmp_path}/failing.py", line 10, in aggregate' in out + err
    assert json.loads(RunFiles(run).record_file.read_text())["state"] == "nothing found"


COUNTING = '''"""A counter in the module, which moves each time a run begins; a second one in a module beside it."""
from dataclasses import dataclass
import torch
from fedtune import Algorithm, hyper
import beside
begun = 0
@dataclass(frozen=True)
class Counting(Algorithm):
    lam: float = hyper(0.3, 0.01, 1.0, help="weight")
    shared = ("body", "head")
    def init(self, task):
        global begun
        begun += 1
        beside.seeds.append(task.seed)
        return {"begun": torch.tensor(float(begun)), "seeds": torch.tensor(float(len(beside.seeds)))}
    def report(self, server):
        return {"begun": float(server["begun"]), "seeds": float(server["seeds"])}
SPACES = {"default": [{"lam": 0.1}, {"lam": 0.2}]}
'''


@pytest.mark.long  # a search of Ray's
@pytest.mark.usefixtures("one_ray")
def test_nothing_in_a_module_outlives_a_trial_or_a_run_on_a_fresh_seed(tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "beside.py").write_text("seeds = []")
    quick = QUICK.replace("--final-seeds 0", "--final-seeds 3").replace("--rounds 4", "--rounds 2")
    words = f"--algo {tmp_path}/counting.py {quick} --storage-path {tmp_path} --trials 2 --seeds-per-trial 2"
    assert search.main(words.split()) == 0
    run = tmp_path / "run"
    logs = [json.loads(line) for file in run.glob("*/result.json") for line in file.read_text().splitlines()]
    assert len({row["pid"] for row in logs}) == 1 and len({row["trial_id"] for row in logs}) == 2  # in one worker
    finals = [json.loads(file.read_text())["rounds"] for file in RunFiles(run).final_folder.glob("*.json")]
    assert len(finals) == 3 and len(logs) == 4
    rows = [*logs, *(row for rounds in finals for row in rounds)]
    assert {(row["begun"], row["seeds"]) for row in rows} == {(1, 1)}


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
    monkeypatch.setattr("fedtune.engine.built_in.Seeds", lambda *_: {}["odd"])
    row = LocalActor({}).train()
    assert row["done"] and row["broken"] and "KeyError: 'odd'" in row["reason"]
