"""A search loses nothing when a worker or its driver is killed, and tells Optuna how its trials ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ray import tune
from support.processes import kill, working
from support.searches import (
    MOMENTS,
    ROUNDS,
    TRIALS,
    actors,
    assert_as_undisturbed,
    begin_search,
    copy_to,
    logged_rounds,
    standing_still,
)
from support.waiting import wait_for

from fedtune.commands import resume, search, status
from fedtune.core.about import FORMAT
from fedtune.core.budget import Budget
from fedtune.core.metrics import METRIC
from fedtune.core.objectives import Goal, parse
from fedtune.runs import frames, logs
from fedtune.runs.files import RunFiles, write_json
from fedtune.runs.folder import StudyFolder
from fedtune.studies import final_check, resuming, search_study
from fedtune.tuning import driver, saved_state, searchers
from fedtune.tuning.space import Space

# a record of a search, but for its state
BEGUN = f'{{"format": {FORMAT}, "options": {{}}, "scenario": {{}}, "defaults": {{}}, %s}}'
OPTIONS = {"algo": "fedavg", "space": "default"}

pytestmark = pytest.mark.usefixtures("one_ray")


@pytest.mark.parametrize("moment", [pytest.param(m, marks=[pytest.mark.long] * (m != 20)) for m in MOMENTS])
def test_a_search_is_resumed_from_what_a_kill_left_at_any_moment(
    moment: int, undisturbed: Path, interrupted: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Copied after so many results were written down, while nothing of it ran."""
    run = copy_to(tmp_path, interrupted[moment])
    assert status.main([str(run)]) == 0
    assert re.search("its driver is gone; .*fedtune resume", capsys.readouterr().out.replace("\n", " "))
    assert json.loads((run / "run.json").read_text())["state"] == "running"
    assert resume.main([str(run), "--no-dashboard"]) == 0
    assert_as_undisturbed(run, undisturbed)
    assert len(json.loads((run / "run.json").read_text())["resumed"]) == 1
    assert resume.main([str(run)]) == 2 and "is finished; --trials +N" in capsys.readouterr().err


def test_what_an_earlier_driver_concluded_is_gone_once_a_search_goes_on(
    interrupted: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """However that ends, its tables do not tell of the trials before.  With open trials it is not extended."""
    files = RunFiles(copy_to(tmp_path, interrupted[20]))
    concluded = [files.trials_file, files.rounds_file, files.front_file, files.best_file]
    for file in concluded:
        file.write_text("from before")
    write_json(files.record_file, files.record | {"state": "interrupted"})
    assert resume.main([str(files.path), "--trials", "2"]) == 2
    assert re.search("is interrupted; .*fedtune resume ", capsys.readouterr().err) and files.trials_file.exists()
    extension = RunFiles(copy_to(tmp_path / "extension", files.path))
    write_json(extension.record_file, files.record | {"extends": "x"})  # resume refuses it, so more trials are taken
    assert resume.main([str(extension.path), "--trials", "2"]) == 2
    assert "trials.parquet, rounds.parquet and study.journal, but one in" in capsys.readouterr().err

    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(driver, "_restored", ended)
        assert resume.main([str(files.path), "--no-dashboard"]) == 130
    assert all(file.exists() for file in concluded)  # as true as before: nothing went on
    monkeypatch.setattr(tune.Tuner, "fit", ended)
    assert resume.main([str(files.path), "--no-dashboard"]) == 130
    assert files.record["state"] == "interrupted" and not any(file.exists() for file in concluded)
    assert frames.load(files.path)[0]["status"].value_counts()["open"] > 0


@pytest.mark.long  # a search of Ray's
def test_a_finished_search_is_extended_by_what_it_has_not_tried(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    before, run, old = tmp_path / "run", tmp_path / "run+2", pd.read_parquet(undisturbed / "trials.parquet")
    shutil.copytree(undisturbed, before)
    assert resume.main([str(before), "--trials", "+2", "--no-dashboard"]) == 0
    trials, rounds = (pd.read_parquet(run / f"{n}.parquet") for n in ("trials", "rounds"))
    pd.testing.assert_frame_equal(trials[:TRIALS], old)
    assert len(trials) == trials["config/lam"].nunique() == TRIALS + 2  # neither the default nor a draw again
    assert rounds.groupby("trial")["round"].apply(list).tolist() == [list(range(1, ROUNDS + 1))] * (TRIALS + 2)
    journal = JournalStorage(JournalFileBackend(str(run / "study.journal")))
    study = optuna.load_study(study_name=None, storage=journal)
    assert {t.user_attrs["trial"]: t.value for t in study.trials} == dict(
        zip(trials["trial"], trials["last_val_acc"], strict=True)
    )
    found = yaml.safe_load((run / "best.yaml").read_text())["found"]
    assert found["val_acc"] == trials["last_val_acc"].max() and found["trials"] == TRIALS + 2
    assert resume.main([str(before), "--trials", "2"]) == 2 and "run+2" in capsys.readouterr().err
    for wrong, message in (({"state": "running"}, "fedtune resume "), ({"searcher": "grid"}, "used grid")):
        record = json.loads((run / "run.json").read_text()) | wrong
        (run / "run.json").write_text(json.dumps(record))
        assert resume.main([str(run), "--trials", "2"]) == 2 and message in capsys.readouterr().err
        (run / "run.json").write_text(json.dumps(record | {"state": "finished"}))


def made_up(run: Path, state: str, how: dict[str, str], rows: dict[str, list[dict]]) -> None:
    """A study's folder with so much as its status reads."""
    words = {"state": state, "algorithm": "fedavg", "searcher": "tpe", "scheduler": "asha", "started": "now"}
    plan = {"scenario": {"rounds": 9}, "rungs": [3], "trials": 5, "concurrent": 2, "space": {"lr": ""}}
    record = words | plan | {"format": FORMAT, "budget": Budget("rounds", 9)._asdict()}
    (run / "run.json").write_text(json.dumps(record))
    trials = [[json.dumps({"trial_id": t, "status": s}), "{}"] for t, s in how.items()]
    (run / "experiment_state-1.json").write_text(json.dumps({"trial_data": trials}))
    for trial, logged in rows.items():
        (run / f"fedavg-{trial}").mkdir()
        lines = [json.dumps({"trial_id": trial} | row) for row in logged]
        (run / f"fedavg-{trial}" / "result.json").write_text("\n".join(lines) + "\n")


def test_the_status_tells_how_trials_stand_what_rungs_left_and_how_long_it_may_take(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(last: int, value: float, **more: Any) -> list[dict]:
        return [
            {"training_iteration": t, METRIC: value, "time_total_s": 2.0 * t, "config": {"lr": 0.1}, "complete": t == 9}
            | more
            for t in range(1, last + 1)
        ]

    how = {"a": "TERMINATED", "b": "TERMINATED", "c": "RUNNING", "d": "RUNNING"}
    played = {"a": rows(9, 0.5), "b": rows(3, 0.2), "c": rows(4, 0.4), "d": rows(3, 0.6)}
    played["d"][-1] |= {METRIC: 0.1, "diverged": True}  # chance, which it is judged by, and no round
    made_up(tmp_path, "running", how, played)
    monkeypatch.setattr(RunFiles, "driven", True)
    assert status.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "4 of 5 trials: 1 finished, 1 stopped, 1 diverged, 1 running" in said
    assert "rung at round 3: reached by 3, 2 went on" in said
    shown = [line.split()[:4] for line in said.splitlines() if line.split()[:1] and line.split()[0] in "abcd"]
    assert shown == [
        ["a", "finished", "9/9", "50.00"],
        ["c", "running", "4/9", "40.00"],
        ["b", "stopped", "3/9", "20.00"],
        ["d", "diverged", "2/9", "60.00"],
    ]
    # ended trials took 18, 6 and 4 s; c has 8 of those 28 / 3, the fifth all of them; two at once
    assert "about 0:00:05 left" in said
    (tmp_path / "run.json").write_text((tmp_path / "run.json").read_text().replace("running", "interrupted"))
    assert status.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "interrupted" in said and "1 finished, 1 stopped, 1 diverged, 1 open" in said and " left" not in said


def test_a_search_without_rounds_has_a_status(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made_up(tmp_path, "running", {}, {})
    assert status.main([str(tmp_path)]) == 0 and "no round was reported yet" in capsys.readouterr().out


def test_optuna_learns_how_each_trial_ended() -> None:
    space = Space({"lam": tune.uniform(0.1, 10)}, [])
    searcher = searchers.searcher("random", space, [{"lam": 1.0}], {}, seed=3, study="s")
    ends = [
        ({METRIC: 0.7, "complete": True}, False),
        ({METRIC: 0.4, "complete": False}, False),
        ({METRIC: 0.1, "diverged": True}, False),
        (None, True),
        ({METRIC: 0.2, "complete": True}, True),
    ]
    for i, (result, error) in enumerate(ends):
        searcher.suggest(str(i))
        for t in (1, 2):
            searcher.on_trial_result(str(i), {METRIC: 0.1 * t, "training_iteration": t})
        searcher.on_trial_complete(str(i), result and result | {"training_iteration": 3}, error)
        searcher.on_trial_complete(str(i), {METRIC: 1.0, "complete": True})  # told once
    found = [(t.state.name, t.value, len(t.intermediate_values)) for t in searcher.study.trials]
    want = [("COMPLETE", 0.7, 3), ("PRUNED", 0.4, 3), ("COMPLETE", 0.0, 2), ("FAIL", None, 2), ("FAIL", None, 3)]
    assert found == want


def test_optuna_learns_how_each_trial_with_two_objectives_ended() -> None:
    """What was stopped or diverged is pruned, however little it communicated, and never on the front."""
    space = Space({"lam": tune.uniform(0.1, 10)}, [])
    for name in ("tpe", "nsga2", "gp", "random"):
        searcher = searchers.searcher(name, space, [{"lam": 1.0}], {}, 3, "s", goal=Goal(parse("val_acc,comm_mb")))
        ends = [
            {METRIC: 0.7, "comm_mb": 30.0, "complete": True},
            {METRIC: 0.2, "comm_mb": 1.0, "complete": False},
            {METRIC: 0.1, "diverged": True},
            {METRIC: 0.6, "comm_mb": 9.0, "complete": True},
        ]
        for i, result in enumerate(ends):
            searcher.suggest(str(i))
            first = {METRIC: 0.1, "comm_mb": 31.0 if i == 0 else 1.0, "training_iteration": 1}
            searcher.on_trial_result(str(i), first)
            searcher.on_trial_complete(str(i), result | {"training_iteration": 2})
        study = searcher.study
        found = [(t.state.name, t.values) for t in study.trials]
        want = [("COMPLETE", [0.7, 30.0]), ("PRUNED", None), ("PRUNED", None), ("COMPLETE", [0.6, 9.0])]
        assert found == want
        assert {t.number for t in study.best_trials} == {0, 3}
        assert 0.1 <= searcher.suggest("5")["lam"] <= 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BEGUN % '"state": "nothing found"', "is nothing found; --trials \\+N adds trials"),
        (BEGUN % '"state": "running", "extends": "x"', "an extension of another search cannot be resumed"),
        (BEGUN % '"state": "interrupted", "replays": "x"', "is one; repeat it from x, --name OTHER"),
    ],
)
def test_a_run_that_cannot_be_resumed_is_refused(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "run.json").write_text(content)
    assert resume.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert pd.Series([error]).str.contains(message).all() and error.count("\n") == 1


def test_what_is_ended_while_it_is_resumed_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "run.json").write_text(json.dumps(json.loads(BEGUN % '"state": "running"') | {"options": OPTIONS}))
    monkeypatch.setattr(saved_state, "require_state", lambda path: None)
    monkeypatch.setattr(search_study, "connected", ended)
    assert resume.main([str(tmp_path)]) == 130
    said = capsys.readouterr()
    assert said.out == f"resuming {tmp_path} from its checkpoints\n"
    assert re.fullmatch(f"interrupted; .*fedtune resume {tmp_path} continues it\n", said.err)


def test_another_users_run_is_not_resumed_without_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.json").write_text(BEGUN % '"state": "running"')
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Exception, match="belongs to another user; give --trust"):
        resuming.record_of(StudyFolder(tmp_path), trust=False)
    assert resuming.record_of(StudyFolder(tmp_path), trust=True)["state"] == "running"


def test_cut_off_lines_of_a_log_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a-1").mkdir()
    row = {"trial_id": "1", "training_iteration": 1, "timestamp": 1.5, "round": 1}
    (tmp_path / "a-1" / "result.json").write_text(json.dumps(row) + '\n{"trial_id": "1", "rou\n[]\n')
    assert logs.logged(tmp_path) == {"1": [row]}
    shutil.rmtree(tmp_path / "a-1")
    assert logs.logged(tmp_path) == {}


# ---- killed while it runs

SHORT = "--algo fedavg --clients 2 --rounds 1 --no-dashboard --name run"


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
    process, run = begin_search(tmp_path), tmp_path / "run"
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

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a Tuner of an earlier test leaves its own
    with monkeypatch.context() as patched:
        patched.setattr(final_check, "check", interrupted)
        assert search.main(f"{SHORT} --trials 1 --final-seeds 1 --storage-path {tmp_path}".split()) == 130
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["state"], record["reason"]) == ("interrupted", "KeyboardInterrupt")
    assert re.search("interrupted; .*fedtune resume", capsys.readouterr().err)
    assert resume.main([str(tmp_path / "run"), "--no-dashboard"]) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["state"] == "finished" and record["final"]


@pytest.mark.long
def test_what_is_interrupted_before_its_first_trial_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    at_once = threading.Event()
    at_once.set()
    with monkeypatch.context() as patched:
        patched.setattr("ray.tune.tune._setup_signal_catching", lambda: at_once)
        assert search.main(f"{SHORT} --trials 2 --final-seeds 0 --storage-path {tmp_path}".split()) == 130
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "interrupted"
    assert re.search("interrupted; .*fedtune resume .* 0 of 2 trials were started", capsys.readouterr().out)
    assert status.main([str(tmp_path / "run")]) == 0
    assert resume.main([str(tmp_path / "run"), "--no-dashboard"]) == 0
    assert "the best of 2 trials (2 finished)" in capsys.readouterr().out
