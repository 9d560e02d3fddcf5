"""A run that an earlier commit made, with records of today's format: it is read, shown and trained again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedtune.commands import replay, status
from fedtune.runs.folder import StudyFolder
from fedtune.studies import replaying
from fedtune.tuning.options.search import SearchOptions

KEPT = Path(__file__).parent / "kept"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(KEPT, tmp_path / "run"))


def test_its_options_give_its_experiment() -> None:
    options = SearchOptions.from_record(StudyFolder(KEPT).record)
    assert (options.algo, options.scenario, options.trials, options.dashboard) == ("gfpl", "digits-w4", 3, False)
    assert options.experiment().scenario == StudyFolder(KEPT).scenario


def test_its_status_is_shown(capsys: pytest.CaptureFixture) -> None:
    assert status.main([str(KEPT)]) == 0
    shown = capsys.readouterr().out
    assert "gfpl, tpe and asha: finished" in shown and "3 of 3 trials: 3 finished" in shown


def test_a_replay_asks_nothing_of_what_decided_which_trials_there_were(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that was drawn, and a bound on ε that trials kept which a budget of bytes ended early."""
    record, planned = json.loads((run / "run.json").read_text()), []
    drawn = {"trials_drawn": "geometric", "searcher": "random", "scheduler": "none", "choose_seeds": 1}
    bounded = {"subject_to": "epsilon<=0.01", "budget_unit": "mb", "budget": 0.01}
    private = {"algo": "fedavg", "fields": record["options"]["fields"] | {"privacy": "client"}}
    record["options"] |= drawn | bounded | private
    (run / "run.json").write_text(json.dumps(record | {"space": {"lr": "0.001..0.3 log"}, "defaults": {}}))
    (run / "suggestions.jsonl").write_text(json.dumps({"trial": "412cd28c", "config": {"lr": 0.01}}))
    monkeypatch.setattr(replaying.search_study, "run_with_ray", lambda p, record: planned.append(p) or 2)
    assert replay.main([str(run)]) == 2
    assert planned[0].trials == 1 and not planned[0].goal.constraints


@pytest.mark.long  # a search of Ray's
@pytest.mark.usefixtures("one_ray")
def test_it_is_replayed_bit_for_bit_or_told_how_far_other_kernels_lead(
    run: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its own machine rounds as it did; a CPU of another kind, even one that has AVX512 too, may add in other orders.

    test_extend.py replays a run of this machine, where every bit must be the same.
    """
    status = replay.main([str(run), "--no-dashboard"])
    said = capsys.readouterr().out
    record = StudyFolder(run.parent / "run-replayed").record
    assert record["replays"] == "run" and record["options"]["fields"] == {"rounds": 3, "clients": 4}
    if "all 3 trials, 9 rounds, are the same bit for bit" in said:
        assert status == 0
        return
    found = re.search(r"the largest relative difference is (\S+), in \w+; trained by ", said)
    assert status == 1 and found and 0 < float(found[1]) < 1e-6
