"""Runs of fedtune 0.1.0, whose records hold a command line in place of options, can still be read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from fedtune.commands import replay, resume, status
from fedtune.runs import frames
from fedtune.runs.folder import RunFolder
from fedtune.tuning.options.options import SearchOptions

OLD = Path(__file__).parent / "v0_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of a run of 0.1.0."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_its_options_are_those_of_its_command_line(old: Path) -> None:
    options = SearchOptions.from_record(RunFolder(old).record)
    assert (options.algo, options.scenario, options.trials, options.dashboard) == ("gfpl", "digits-w4", 3, False)
    assert options.experiment().scenario == RunFolder(old).scenario


def test_its_status_is_shown(old: Path, capsys: pytest.CaptureFixture) -> None:
    assert status.main([str(old)]) == 0
    shown = capsys.readouterr().out
    assert "gfpl, tpe and asha: finished" in shown and "3 of 3 trials: 3 finished" in shown


def test_its_tables_are_read(old: Path) -> None:
    trials, rounds = frames.load(old)
    assert set(trials["algorithm"]) == {"gfpl"} and len(trials) == 3 and len(rounds) == 9
    for file in ("trials.parquet", "rounds.parquet"):  # and from Ray's logs alone
        (old / file).unlink()
    again, logged = frames.load(old)
    assert sorted(again["trial"]) == sorted(trials["trial"]) and len(logged) == 9


def test_it_cannot_be_resumed_and_a_line_says_what_would_do(old: Path, capsys: pytest.CaptureFixture) -> None:
    record = json.loads((old / "run.json").read_text())
    (old / "run.json").write_text(json.dumps(record | {"state": "interrupted"}))
    before = sorted(old.rglob("*"))
    assert resume.main([str(old)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "of fedtune 0.1.0" in said and f"fedtune replay {old}" in said
    assert sorted(old.rglob("*")) == before


def test_it_is_replayed_bit_for_bit_by_the_kernels_that_trained_it(old: Path, capsys: pytest.CaptureFixture) -> None:
    """On a CPU with AVX512; elsewhere sums are rounded differently, and the replay says how far that leads."""
    status = replay.main([str(old), "--no-dashboard"])
    said = capsys.readouterr().out
    record = RunFolder(old.parent / "old-replayed").record
    assert record["replays"] == "old" and record["options"]["fields"] == {"rounds": 3, "clients": 4}
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert status == 0 and "all 3 trials, 9 rounds, are the same bit for bit" in said
        return
    found = re.search(r"the largest relative difference is (\S+), in \w+; trained by fedtune 0.1.0, commit \w+, ", said)
    assert status == 1 and found and float(found[1]) < 1e-6
