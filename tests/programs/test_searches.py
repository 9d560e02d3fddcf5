"""Searches of a program: their figures are the program's, whatever stops it on the way, and nothing of it is left."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.processes import kill, lives
from support.searches import actors, command, logged_rounds, searched
from support.waiting import wait_for

from fedtune.analysis import notebook
from fedtune.commands import report, resume, search, status
from fedtune.tuning import plan
from fedtune.tuning.callbacks import trackers

pytestmark = pytest.mark.usefixtures("one_ray")

# figures follow from values, so any search can be judged by them; the second process is in a session of its own
SCRIPT = """
import subprocess, sys, time
lr, rounds, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if (seed, lr) == (3, 0.01):
    sys.exit("no luck")
open(sys.argv[4], "a").write(str(subprocess.Popen(["sleep", "999"], start_new_session=True).pid) + "\\n")
for t in range(1, rounds + 1):
    while t > int(open("allowed").read()):
        time.sleep(0.01)
    print(f"round {t}: acc {lr * t / (1 + seed)!r}")
    print(f"of test rows {lr * t / 2!r}")
"""
FILE = """
command = "{python} -S own.py {{lr}} {{rounds}} {{seed}} pids"
rounds = 9
[metrics.val_acc]
pattern = 'round (?P<round>[0-9]+): acc (.*)'
split = "validation"
[metrics.test_acc]
pattern = 'of test rows (.*)'
[space]
lr = "0.001..0.1 log"
[defaults]
lr = 0.01
"""


def file(folder: Path, more: str = "", script: str = SCRIPT) -> Path:
    """A program's file with its script beside it.  more: what it says at its top."""
    (folder / "own.py").write_text(script)
    allow(folder, 9)
    path = folder / "own.toml"
    path.write_text(more + FILE.format(python=sys.executable))
    return path


def allow(folder: Path, rounds: int) -> None:
    """Its runs wait before they go beyond this round."""
    (folder / "allowed.new").write_text(str(rounds))
    (folder / "allowed.new").replace(folder / "allowed")


def assert_its_figures(run: Path, seeds: int = 1) -> None:
    """Every round once, each with the figure that its configuration has there."""
    trials, rounds = (pd.read_parquet(run / f"{name}.parquet") for name in ("trials", "rounds"))
    lr = rounds["trial"].map(trials.set_index("trial")["config/lr"])
    over_seeds = sum(1 / (1 + seed) for seed in range(seeds)) / seeds
    assert not rounds.duplicated(["trial", "round"]).any() and len(rounds)
    for row, value in zip(rounds.to_dict("records"), lr, strict=True):
        assert math.isclose(row["val_acc"], value * row["round"] * over_seeds, rel_tol=1e-12)
    assert (trials["rounds"][trials["status"] == "finished"] == 9).all()


def pids(folder: Path) -> list[int]:
    """The processes that programs started, of which each is to end with its program."""
    return [int(line) for line in (folder / "pids").read_text().split()]


class Tracker:
    """A tool that is told of each trial: its rows by trial and round, and how trials ended."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], dict[str, float]] = {}
        self.ended: dict[str, str] = {}

    def add(self, trial: str, config: dict[str, Any], rows: Sequence[dict[str, Any]], how: str) -> None:
        assert list(config) == ["lr"]
        self.rows |= {(trial, row["round"]): {n: row[n] for n in ("val_acc", "test_acc")} for row in rows}
        self.ended[trial] = how


def test_a_search_pauses_resumes_and_checks_a_program_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker()
    monkeypatch.setitem(trackers.KINDS, "wandb", type("Kind", (), {"environment": {}, "__new__": lambda *_: tracker}))
    monkeypatch.setattr(plan, "require_packages", lambda names: None)  # the package need not be there
    words = "--trials 4 --scheduler promote --seeds-per-trial 2 --final-seeds 3 --no-dashboard --logger wandb"
    found = searched(tmp_path, f"{file(tmp_path)} {words}")
    assert_its_figures(found.folder, seeds=2)
    rows = found.rounds.set_index(["trial", "round"])[["val_acc", "test_acc"]].to_dict("index")
    assert tracker.rows == rows and tracker.ended == dict(
        zip(found.trials["trial"], found.trials["status"], strict=True)
    )
    assert {"stopped", "finished"} == set(found.trials["status"])  # those that went on had been paused
    said, notes = capsys.readouterr()
    assert "Test accuracy on 3 fresh seeds" in said and "MB" not in said
    assert "\nOn fresh seeds the default failed in 1 of 3 runs, so whether tuning gained anything over the" in said
    assert "failed in 1 of 3" in said
    assert "note: default, seed 3 failed: own failed with status 1 after 0 rounds" in notes
    best = found.trials.set_index("trial").loc[re.search(r"It is trial (\w+)", said)[1]]
    assert [row["test_acc"] for row in found.record["final"] if row["configuration"] == "best"] == pytest.approx(
        [best["config/lr"] * 9 / 2] * 3
    )
    assert report.main([str(found.folder), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text().partition("<script>")[0]
    assert "own (a program)" in page and "MB a run" not in page and "selection gap" in page
    assert "On fresh seeds the default failed in 1 of 3 runs" in page
    monkeypatch.setenv(notebook.RUN_VARIABLE, str(found.folder))
    book = json.loads((Path(notebook.__file__).parent / "search.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["RUN"] == found.folder
    assert not any(map(lives, pids(tmp_path)))


@pytest.mark.long  # a search of Ray's
def test_a_search_of_a_program_that_reports_every_third_round_counts_rounds(tmp_path: Path) -> None:
    own = file(tmp_path, "report_every = 3\n", SCRIPT.replace("    print(", "    t % 3 or print("))
    words = "--trials 4 --searcher random --scheduler promote --final-seeds 2 --no-dashboard"
    found = searched(tmp_path, f"{own} {words}")
    assert_its_figures(found.folder)
    assert found.record["grace"] == 3 and found.record["rungs"] == [3]
    assert set(found.rounds["round"]) == {3, 6, 9} and set(found.trials["rounds"]) == {3, 9}
    logged = [json.loads(line) for log in found.folder.glob("*/result.json") for line in log.open()]
    assert all(row["training_iteration"] == row["round"] for row in logged) and len(logged) == len(found.rounds)


@pytest.mark.long  # a search of Ray's
def test_what_a_failing_program_printed_last_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    own = file(tmp_path, script="raise ValueError('no\\nluck')")
    words = f"{own} --trials 2 --final-seeds 0 --no-dashboard --storage-path {tmp_path}"
    assert search.main(words.split()) == 2
    said, error = capsys.readouterr()
    assert "  ValueError: no\n  luck" in said and said.count("Traceback") == 1
    last = error.splitlines()[-1]
    assert last.startswith("error: every trial failed: own failed with status 1 after 0 rounds") and "luck" not in last


@pytest.mark.long  # a search of Ray's
def test_a_program_that_is_killed_each_time_has_its_own_reason(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script = "import os\nprint('round 1: acc 0.5')\nprint('of test rows 0.5', flush=True)\nos.kill(os.getpid(), 9)"
    words = f"{file(tmp_path, script=script)} --trials 1 --final-seeds 0 --no-dashboard"
    found = searched(tmp_path, words, status=1)
    reason = "own was ended by SIGKILL in round 2; the machine may be out of memory"
    assert found.trials[["status", "rounds", "reason"]].to_numpy().tolist() == [["failed", 1, reason]]
    said, notes = capsys.readouterr()
    assert notes.count(f"is tried again: {reason}\n") == 3 and f"failed: {reason}\n" in notes
    assert f"no trial ended with a finite result (the first: {reason})" in said + notes


def programs(folder: Path) -> list[int]:
    """The processes of programs that run in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if (process / "cwd").resolve() == folder and b"own.py" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def assert_all_end(folder: Path) -> None:
    """Every process that a program started ends: within 5 s on an idle machine."""
    began = pids(folder)
    assert began
    wait_for(lambda: not any(map(lives, began)))


@pytest.mark.long  # five deaths of a search
def test_programs_workers_and_drivers_may_be_killed_or_stopped(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In the end there is what an undisturbed search finds, and nothing is left on the way."""
    words = "--trials 3 --scheduler none --searcher random --max-concurrent 2 --final-seeds 0 --no-dashboard"
    where, run = ["--storage-path", str(tmp_path), "--name", "run"], tmp_path / "run"
    own = file(tmp_path)
    allow(tmp_path, 2)
    process = command("fedtune", "search", str(own), *words.split(), *where)
    victims = wait_for(lambda: logged_rounds(run) >= 3 and programs(tmp_path))
    os.kill(victims[0], signal.SIGKILL)
    allow(tmp_path, 4)
    victims = wait_for(lambda: logged_rounds(run) >= 7 and actors(process.pid))
    os.kill(victims[0], signal.SIGKILL)
    allow(tmp_path, 6)
    wait_for(lambda: logged_rounds(run) >= 11)
    wait_for(lambda: status.main([str(run)]) == 0 and re.search(r"says: \S", capsys.readouterr().out), every=1)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert_all_end(tmp_path)
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    allow(tmp_path, 8)
    process = command("fedtune", "resume", str(run), "--no-dashboard")
    wait_for(lambda: logged_rounds(run) >= 15)
    kill(process)
    assert_all_end(tmp_path)
    allow(tmp_path, 9)
    (tmp_path / "own.toml").unlink()
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert "own.toml is gone; the run's own copy of it is used" in capsys.readouterr().err
    assert_its_figures(run)
    trials = pd.read_parquet(run / "trials.parquet")
    assert trials["status"].tolist() == ["finished"] * 3 and trials["config/lr"].nunique() == 3
    assert json.loads((run / "run.json").read_text())["state"] == "finished"
    assert_all_end(tmp_path)
