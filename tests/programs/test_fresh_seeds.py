"""Programs on fresh seeds: one that fails or is killed on the way ends its own run, and is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.outcomes import outcome_of
from support.programs import python

from fedtune.core.budget import Budget
from fedtune.core.errors import UserError
from fedtune.core.objectives import ACCURACY
from fedtune.core.workload import Place
from fedtune.programs.workload import ProgramWorkload
from fedtune.runs.trial_states import FAILED, loss_word
from fedtune.studies import fresh_seeds, ray_tasks
from fedtune.studies.comparison import tables, text
from fedtune.studies.ray_tasks import Outcome, RunTask

SCRIPT = """
import os, signal, sys
seed = int(sys.argv[1])
for t in range(1, 4):
    if seed == 11 and t == 2:
        print("no\\nluck")
        sys.exit(3)
    if seed >= 12 and t == 3 and (seed > 12 or not os.path.exists("killed")):
        open("killed", "w")
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"acc: {seed / 100 + t / 1000}", flush=True)
"""


def trained(folder: Path, *seeds: int) -> list[Outcome]:
    workload = ProgramWorkload(program=python(folder, SCRIPT, words="{seed}"))
    at = Place(folder / "outputs", "run", 1, retries=3)
    nothing = [None] * len(seeds)
    return ray_tasks.train_seeds(workload, {}, seeds, at, *nothing, budget=Budget(), objective=None)


def test_a_run_that_fails_ends_by_itself_and_says_why(tmp_path: Path) -> None:
    good, bad = trained(tmp_path, 10, 11)
    assert [row["val_acc"] for row in good.rounds] == pytest.approx([0.101, 0.102, 0.103])
    assert not good.reason and not good.notes
    assert bad.reason.startswith(f"{FAILED}own failed with status 3 after 1 round") and len(bad.rounds) == 1
    (note,) = bad.notes
    assert note.splitlines() == ["it failed; the last that it printed:", "  acc: 0.111", "  no", "  luck"]


def test_a_run_that_is_killed_begins_again_a_few_times(tmp_path: Path) -> None:
    once, always = trained(tmp_path, 12, 13)
    assert [row["round"] for row in once.rounds] == [1, 2, 3] and once.rounds[-1]["val_acc"] == 0.123
    assert not once.reason and [note.partition(" in ")[0] for note in once.notes] == ["own was ended by SIGKILL"]
    assert "tried 4 times" in always.reason and len(always.notes) == 3


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without Ray, one after another."""

    def outcomes(some: Sequence[list[RunTask]], data: Any, at: Place, *_: Any) -> Iterator[tuple[RunTask, Outcome]]:
        for (run,) in some:
            yield run, outcome_of(run.workload, run.config, None, Budget())

    monkeypatch.setattr(ray_tasks, "_outcomes", outcomes)
    monkeypatch.setattr(ray_tasks, "_slots", lambda *_: 1)


@pytest.mark.usefixtures("here")
def test_where_all_fail_nothing_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    workload = ProgramWorkload(program=python(tmp_path, SCRIPT, words="{seed}"))
    bad, good = (RunTask(f"best {seed}", workload.with_seed(seed), {}) for seed in (11, 10))
    with pytest.raises(UserError, match="^own failed with status 3"):
        ray_tasks.run_all([bad], {}, tmp_path / "files")
    assert not list((tmp_path / "files").glob("*.json"))
    assert "note: best 11: it failed; the last that it printed:\n  acc: 0.111\n  no" in capsys.readouterr().err
    found = ray_tasks.run_all([bad, good], {}, tmp_path / "files")
    assert found["best 11"].reason and len(list((tmp_path / "files").glob("*.json"))) == 2
    again = ray_tasks.run_all([bad, good], {}, tmp_path / "files")
    assert json.dumps(again) == json.dumps(found)  # nothing ran again


def test_a_comparison_tells_who_failed() -> None:
    rows = [
        {"algorithm": name, "configuration": which, "seed": seed, "chosen": which == "top 1", "trial": "a"}
        | {"score": 0.9, "test_acc": 0.8, "val_acc": 0.8, "rounds": 3, "seconds": 1.0, "reason": ""}
        | dict.fromkeys(("rounds_to_95", "mb_to_95", "mb_per_round"), 1.0)
        for name in ("own", "other")
        for which in ("default", "top 1")
        for seed in (1, 2)
    ]
    rows[2] |= {"test_acc": float("nan"), "reason": f"{FAILED}own failed with status 3"}
    evaluations = pd.DataFrame(rows)
    spent = dict.fromkeys(("own", "other"), {"trials": 2, "rounds": 6, "mb": 0.0, "seconds": 1.0})
    table = tables.table(evaluations, spent, {}, ACCURACY)
    shown = text.shown(table).set_index("algorithm")
    assert shown.loc["own", "tuned %"] == "failed in 1 of 2" and shown.loc["other", "tuned %"] == "80.00 ± 0.00"
    records = {name: {"searcher": "random", "space": {}} for name in ("own", "other")}
    assert "own (top 1, seed 1) failed: own failed with status 3" in text.caveats(records, 2, evaluations)
    assert fresh_seeds.is_tuned(evaluations).sum() == 4


def test_how_runs_ended_in_a_word() -> None:
    assert loss_word(["", "client 1's loss"]) == "diverged" and loss_word(["", f"{FAILED}x"]) == "failed"
    assert loss_word([f"{FAILED}x", "nan", None]) == "diverged or failed"
