"""A search whose driver or worker is killed while it runs ends as if nothing had been."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from support.processes import kill, working
from support.searches import TRIALS, actors, assert_as_undisturbed, begin_search, logged_rounds, standing_still
from support.waiting import wait_for

from fedtune.commands import resume, search, status
from fedtune.studies import final_check

pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.mark.long
def test_a_killed_driver_is_resumed_where_it_was(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    process, run = begin_search(tmp_path), tmp_path / "run"
    wait_for(lambda: logged_rounds(run) >= 20)
    with standing_still(process, run):  # however long the questions take
        assert status.main([str(run)]) == 0
        said = capsys.readouterr().out
        assert "fedproto, random and none: running" in said and f"of {TRIALS} trials: " in said and " running" in said
        assert resume.main([str(run)]) == 2 and "another is running" in capsys.readouterr().err
        kill(process)
    assert status.main([str(run)]) == 0
    assert re.search("its driver is gone; .*fedtune resume", capsys.readouterr().out.replace("\n", " "))
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert_as_undisturbed(run, undisturbed)


@pytest.mark.long
def test_sigterm_keeps_what_was_found_and_the_search_is_resumed(undisturbed: Path, tmp_path: Path) -> None:
    """SIGTERM is Ctrl-C, also as `timeout` and batch systems send it: to the process, and to all of its group."""
    process = begin_search(tmp_path)
    run = tmp_path / "run"
    wait_for(lambda: logged_rounds(run) >= 12)
    driver = working(process.pid)
    os.kill(driver, signal.SIGTERM)
    os.killpg(driver, signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and re.search("interrupted; .*fedtune resume", out) and "best so far" in out, out
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert all((run / name).exists() for name in ("trials.parquet", "rounds.parquet", "best.yaml", "study.journal"))
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert_as_undisturbed(run, undisturbed)


@pytest.mark.long
def test_a_killed_workers_trial_goes_on_from_its_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    process = begin_search(tmp_path)
    wait_for(lambda: logged_rounds(tmp_path / "run") >= 4)

    os.kill(wait_for(lambda: actors(process.pid))[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert_as_undisturbed(tmp_path / "run", undisturbed)


@pytest.mark.long
def test_what_is_interrupted_in_its_final_check_says_so_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    words = "--algo fedavg --clients 2 --rounds 1 --trials 1 --final-seeds 1 --no-dashboard --name run --storage-path"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a Tuner of an earlier test leaves its own
    with monkeypatch.context() as patched:
        patched.setattr(final_check, "check", interrupted)
        assert search.main([*words.split(), str(tmp_path)]) == 130
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["state"], record["reason"]) == ("interrupted", "KeyboardInterrupt")
    assert re.search("interrupted; .*fedtune resume", capsys.readouterr().out)
    assert resume.main([str(tmp_path / "run"), "--no-dashboard"]) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["state"] == "finished" and record["final"]


@pytest.mark.long
def test_what_is_interrupted_before_its_first_trial_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    at_once = threading.Event()
    at_once.set()
    words = "--algo fedavg --clients 2 --rounds 1 --trials 2 --final-seeds 0 --no-dashboard --name run --storage-path"
    with monkeypatch.context() as patched:
        patched.setattr("ray.tune.tune._setup_signal_catching", lambda: at_once)
        assert search.main([*words.split(), str(tmp_path)]) == 130
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "interrupted"
    assert re.search("interrupted; .*fedtune resume .* 0 of 2 trials were started", capsys.readouterr().out)
    assert status.main([str(tmp_path / "run")]) == 0
    assert resume.main([str(tmp_path / "run"), "--no-dashboard"]) == 0
    assert "the best of 2 trials (2 finished)" in capsys.readouterr().out
