"""Tools that are told of every trial: MLflow and Weights & Biases, as their own stores hold it."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.searches import QUICK, searched
from support.wandb_files import run_of

from fedtune.commands import search
from fedtune.core.errors import UserError
from fedtune.runs.tables import rounds_frame
from fedtune.tuning.callbacks import trackers
from fedtune.tuning.callbacks.trackers import TrialLogger

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # theirs

needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"pip install -e .[{name}]")
    for name in trackers.KINDS
}
each = pytest.mark.parametrize("name", [pytest.param(name, marks=needs[name]) for name in trackers.KINDS])


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own environment says nothing."""
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)


class Fake:
    """A tool that keeps what it is told, or fails."""

    def __init__(self, failing: bool = False) -> None:
        self.told: dict[str, tuple[Any, ...]] = {}
        self.failing = failing

    def add(self, trial: str, config: dict[str, Any], rows: Sequence[dict[str, Any]], how: str) -> None:
        if self.failing:
            raise OSError("no answer from the server")
        self.told[trial] = (config, [row["round"] for row in rows], how)

    def remove(self, trial: str) -> None:
        self.told.pop(trial)


def trial(name: str, **last: Any) -> SimpleNamespace:
    return SimpleNamespace(trial_id=name, config={"lam": float(len(name))}, last_result=last)


def result(name: str, t: int) -> dict[str, Any]:
    value = random.Random(f"{name} {t}").random()
    figures = {"val_acc": value, "comm_mb": 0.1 * t, "up_floats": 7 * t, "seconds": value / 3, "a_new_one_of_rays": 1.0}
    return figures | {"round": t, "trial_id": name, "training_iteration": t, "timestamp": 1.7e9 + t, "done": t == 6}


def told(tool: Any, events: Callable[[TrialLogger], None], name: str = "mlflow") -> None:
    with TrialLogger(name, tool, lambda config: config | {"rate": 0.1}) as teller:
        events(teller)


ENDS = {"long": (6, "finished"), "cut": (4, "stopped"), "odd": (2, "diverged")}  # the last round of each


def a_search(teller: TrialLogger, names: Sequence[str] = tuple(ENDS)) -> None:
    """Three trials: one trains to its end, one is stopped after round 4, one diverges in round 3; some rounds twice."""
    rows: dict[str, list[dict[str, Any]]] = dict(teller.rows)
    teller.rows = rows
    for name in names:
        last, how = ENDS[name]
        rows[name] = [result(name, t) | {"config": {"lam": float(len(name))}} for t in (1, *range(1, last + 1))]
        rows[name] += [{"val_acc": 0.1, "diverged": True, "trial_id": name}] * (how == "diverged")
        teller.on_trial_complete(0, [], trial(name, **rows[name][-1] | {"complete": last == 6}))


def test_a_tool_is_told_of_each_trial_when_it_has_ended() -> None:
    tool = Fake()

    def events(teller: TrialLogger) -> None:
        a_search(teller)
        teller.on_trial_error(0, [], trial("never began"))
        teller.on_trial_complete(0, [], trial("of an earlier driver"))
        teller.rows = {**teller.rows, "open": [result("open", 1) | {"config": {"lam": 4.0}}]}

    told(tool, events)
    ended = {n: ({"lam": float(len(n)), "rate": 0.1}, [*range(1, last + 1)], how) for n, (last, how) in ENDS.items()}
    ended |= {"open": ({"lam": 4.0, "rate": 0.1}, [1], "interrupted")}  # the clock ends a search with trials that run
    assert tool.told == ended | {"never began": ({"lam": 11.0, "rate": 0.1}, [], "failed")}


def test_a_tool_that_fails_for_good_does_not_end_the_search(capsys: pytest.CaptureFixture) -> None:
    told(Fake(failing=True), a_search, "wandb")
    said = " ".join(capsys.readouterr().err.split())
    assert "note: logging to wandb stopped (no answer from the server); rounds.parquet has everything" in said


def test_a_tool_that_hangs_does_not_hold_the_search(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "LAST", 0.05)
    answers, tool = threading.Event(), Fake()
    monkeypatch.setattr(tool, "add", lambda *trial: answers.wait(300))
    told(tool, a_search)
    answers.set()
    assert "note: mlflow is too slow" in capsys.readouterr().err


# ---- their own stores


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store, which takes seconds to make."""
    folder = tmp_path_factory.mktemp("store")
    made("mlflow", folder)
    return folder / "mlflow.db"


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A copy of it in the test's folder, where the test is of MLflow."""
    if request.node.callspec.params["name"] == "mlflow":
        shutil.copy(request.getfixturevalue("empty_store"), tmp_path / "mlflow.db")


def plan(folder: Path, algorithm: str = "gfpl") -> Any:
    about = SimpleNamespace(name=algorithm, seed=3, configuration=dict)
    options = SimpleNamespace(logger=["mlflow"], scenario="digits-w4")
    return SimpleNamespace(workload=about, options=options, folder=folder / "run")


def made(name: str, folder: Path, algorithm: str = "gfpl") -> trackers.Tracker:
    return trackers.KINDS[name](plan(folder, algorithm))


def stored(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What a tool holds of each trial: its rows by round, its configuration, and how it ended."""
    return {"mlflow": _stored_by_mlflow, "wandb": _stored_by_wandb}[name](folder)


def _stored_by_mlflow(folder: Path) -> dict[str, dict[str, Any]]:
    from mlflow import MlflowClient

    found: dict[str, dict[str, Any]] = {}
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    for run in client.search_runs([client.get_experiment_by_name("fedtune").experiment_id]):
        rows: dict[int, dict[str, float]] = {}
        for metric in run.data.metrics:
            points = client.get_metric_history(run.info.run_id, metric)
            assert len(points) == len({p.step for p in points}), "no round stands there twice"
            for point in points:
                rows.setdefault(point.step, {"round": point.step})[metric] = point.value
        assert run.data.tags["trial"] not in found, "a trial has one run"
        found[run.data.tags["trial"]] = {
            "rows": rows,
            "config": run.data.params,
            "how": run.data.tags.get("status"),
            "state": run.info.status,
            "of": run.data.tags["search"],
        }
    return found


def _stored_by_wandb(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in folder.glob("run/wandb/offline-run-*/*.wandb"):
        run = run_of(file)
        config = {n: v for n, v in run["config"].items() if n not in ("algorithm", "scenario", "seed", "trial")}
        assert run["config"]["trial"] not in found, "a trial has one run"
        assert run["project"] == "fedtune" and run["id"].endswith(run["config"]["trial"]) and len(run["id"]) <= 128
        found[run["config"]["trial"]] = {
            "rows": run["rows"],
            "config": {n: str(v) for n, v in config.items()},
            "how": run["summary"].get("status"),
            "state": run["exit"],
            "of": run["group"],
        }
    return found


def assert_holds(name: str, folder: Path, rounds: pd.DataFrame, how: dict[str, str]) -> None:
    """One run a trial, every round once, every number to its last digit."""
    got = stored(name, folder)
    assert {trial: run["how"] for trial, run in got.items()} == how
    for trial, run in got.items():
        want = rounds[rounds["trial"] == trial].set_index("round", drop=False).drop(columns="trial")
        assert sorted(run["rows"]) == want.index.tolist()
        for t, row in run["rows"].items():
            assert {n: float(v) for n, v in row.items()} == {n: float(v) for n, v in want.loc[t].dropna().items()}


WHOLE = {n: [result(n, t) for t in range(1, last + 1)] for n, (last, _) in ENDS.items()}
HOW = {n: how for n, (_, how) in ENDS.items()}


@each
@pytest.mark.usefixtures("store")
def test_a_tool_holds_every_round_to_the_last_digit(name: str, tmp_path: Path) -> None:
    told(made(name, tmp_path), a_search)
    assert_holds(name, tmp_path, rounds_frame(WHOLE), HOW)
    for trial, run in stored(name, tmp_path).items():
        assert run["config"] == {"lam": str(float(len(trial))), "rate": "0.1"} and run["of"] == f"{tmp_path.name}/run"
        assert run["state"] == {"mlflow": "FINISHED", "wandb": 0}[name]


@each
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("algorithm", ["gfpl", "own.py:Fair", "mein 'Verfahren'.py:[unk]", 'a/b#?%;,"ü.py', "x" * 140])
def test_a_resumed_search_gives_each_trial_one_run(name: str, algorithm: str, tmp_path: Path) -> None:
    """The first driver logged one trial, half of another, and one that is tried again under another name."""
    tool = made(name, tmp_path, algorithm)
    told(tool, lambda teller: a_search(teller, ["odd"]))
    half = [{"val_acc": 0.5, "round": t, "timestamp": 1.7e9 + t} for t in (1, 2)]
    tool.add("lost", {"lam": 4.0}, half, "finished")
    tool.add("cut", {"lam": 3.0}, half, "interrupted")
    (tmp_path / "run" / "lost" / "gfpl-lost").mkdir(parents=True)

    def resumed(teller: TrialLogger) -> None:
        odd = [*WHOLE["odd"], {"val_acc": 0.1, "diverged": True, "trial_id": "odd", "timestamp": 1.7e9}]
        teller.rows = {"odd": [row | {"config": {"lam": 3.0}} for row in odd]}
        teller.catch_up(tmp_path / "run")
        a_search(teller, ["long", "cut"])

    told(made(name, tmp_path, algorithm), resumed)
    assert_holds(name, tmp_path, rounds_frame(WHOLE), HOW)


@needs["mlflow"]
def test_the_users_environment_says_where_mlflow_stores(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(empty_store, tmp_path / "elsewhere.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    told(made("mlflow", tmp_path), a_search)
    assert not (tmp_path / "mlflow.db").exists()
    from mlflow import MlflowClient

    client = MlflowClient()
    assert len(client.search_runs([client.get_experiment_by_name("mine").experiment_id])) == 3


@needs["mlflow"]
def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://roof")
    with pytest.raises(UserError, match="--logger mlflow cannot be used: .*carrier-pigeon") as error:
        with trackers.opened(plan(tmp_path)):
            pass
    assert "\n" not in str(error.value)


def test_what_keeps_tools_quiet_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []
    monkeypatch.setitem(trackers.KINDS, "mlflow", lambda p: seen.append(os.environ.get("MLFLOW_DISABLE_TELEMETRY")))
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "DEBUG")
    before = dict(os.environ)
    with trackers.opened(plan(tmp_path)):
        assert os.environ["MLFLOW_LOGGING_LEVEL"] == "DEBUG"
    assert seen == ["true"] and dict(os.environ) == before


# ---- in a search


@pytest.mark.parametrize("name", trackers.KINDS)
@pytest.mark.usefixtures("nothing_starts")
def test_a_package_that_is_not_installed_is_one_line_that_names_the_extra(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is, and a folder of W&B's data lies here."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *more: None if n in trackers.KINDS else find(n, *more))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()
    assert search.main(f"--algo local --logger {name} --storage-path {tmp_path / 'runs'}".split()) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and f"pip install 'fedtune[{name}]'" in complaint
    assert not (tmp_path / "runs").exists()


@pytest.mark.long  # a search of Ray's
@needs["mlflow"]
@needs["wandb"]
@pytest.mark.usefixtures("one_ray")
def test_a_search_is_logged_as_its_tables_hold_it(empty_store: Path, tmp_path: Path) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    asked = "--algo fedprox --rounds 6 --trials 5 --grace 2 --max-concurrent 2 --logger mlflow --logger wandb"
    found = searched(tmp_path, QUICK + asked)
    how = dict(zip(found.trials["trial"], found.trials["status"], strict=True))
    for name in trackers.KINDS:
        assert_holds(name, tmp_path, found.rounds, how)
        for trial, run in stored(name, tmp_path).items():
            row = found.trials.set_index("trial").loc[trial]
            assert float(run["config"]["mu"]) == row["config/mu"] and run["config"]["optimizer"] == "sgd"
    assert found.record["options"]["logger"] == list(trackers.KINDS)
