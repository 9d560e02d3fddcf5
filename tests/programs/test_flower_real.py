"""Real Flower apps, in an environment of their own with Flower and its Ray.

The environment is made once by uv in a few seconds, and kept in the user's temporary folder.  FEDTUNE_FLWR_PYTHON names
interpreters that have Flower already, separated by commas: then all of them are tested, and more.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.programs import processes, start
from support.waiting import wait_for

from fedtune.core.errors import UserError
from fedtune.programs import program_file
from fedtune.programs.run import ProgramRun

FLOWER = "flwr[simulation]==1.42.0"
APP = Path(__file__).parent / "flower-app"
APPS = ("app", "app-of-before")
GIVEN = list(filter(None, os.environ.get("FEDTUNE_FLWR_PYTHON", "").split(",")))


def made() -> str:
    """An interpreter with Flower; the test is skipped where none can be had."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if not uv:
        pytest.skip("uv is not there, which installs Flower in an environment of its own")
    folder = Path(tempfile.gettempdir()) / f"fedtune-tests-{getpass.getuser()}" / FLOWER
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for words in (["venv", "-q", "-p", sys.executable, folder], ["pip", "install", "-q", "-p", folder, FLOWER]):
                done = subprocess.run([uv, *map(str, words)], capture_output=True, text=True, timeout=300)
                if done.returncode:
                    pytest.skip(f"Flower cannot be installed here: {done.stderr.strip()[-200:]}")
            (folder / "complete").touch()
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module", params=GIVEN or ["made"])
def python(request: pytest.FixtureRequest) -> str:
    return made() if request.param == "made" else request.param


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # of the tests' forks


def app_folder(app: str, folder: Path) -> Path:
    """A copy of the app in `folder`, of Flower's strategies or of those before."""
    copy = folder / app
    shutil.copytree(APP, copy)
    if app == "app-of-before":
        file = copy / "pyproject.toml"
        file.write_text(file.read_text().replace("_app:app", "_app_of_before:app"))
    return copy


def trial(
    python: str, app: str, folder: Path, rounds: int = 5, cpus: int = 1, seed: int = 3, **config: Any
) -> ProgramRun:
    metrics = ["client:accuracy", "train:loss", "server:accuracy"]
    program = program_file.of_option(
        flower=str(app_folder(app, folder / "apps")),
        metrics={name: {} for name in metrics},
        python=python,
        rounds=rounds,
    )
    return start(program, folder / app, config, seed=seed, cpus=cpus)


def first(run: ProgramRun, rounds: int) -> list[dict[str, Any]]:
    """The first rows as the app reported them, also what it reported besides the program's metrics."""
    while run.round < rounds:
        run.step()
    lines = (run.folder / "rows.jsonl").read_text().splitlines()
    return [json.loads(line.removeprefix("fedtune ")) for line in lines[:rounds]]


@pytest.mark.long
def test_both_kinds_of_strategies_train_all_clients_and_leave_no_process(python: str, tmp_path: Path) -> None:
    one = trial(python, "app", tmp_path)
    other = trial(python, "app-of-before", tmp_path, rounds=10_000)
    try:
        with ThreadPoolExecutor() as pool:
            rows, before = pool.map(first, (one, other), (5, 5))
        assert len(processes(other.folder.parent)) > 2  # with Ray's
    finally:
        one.close()
        other.close()
    wait_for(lambda: not processes(one.folder.parent) and not processes(other.folder.parent))
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["train_clients"] for row in rows} == {row["client_clients"] for row in before} == {4.0}
    assert rows[-1]["client_accuracy"] > rows[0]["client_accuracy"] + 0.1
    for name in ("train_loss", "client_loss", "client_accuracy", "server_accuracy"):  # the same clients, the same draws
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in before], abs=1e-12)


@pytest.mark.skipif(not GIVEN, reason="FEDTUNE_FLWR_PYTHON names no interpreter with Flower")
@pytest.mark.parametrize("app", APPS)
def test_a_seed_decides_who_is_sampled_and_all_figures(app: str, python: str, tmp_path: Path) -> None:
    runs = [(2, 3), (1, 3), (2, 4)]  # also with other clients at once
    found = []
    for i, (cpus, seed) in enumerate(runs):
        run = trial(python, app, tmp_path / str(i), cpus=cpus, seed=seed, **{"fraction-train": 0.5})
        found.append(first(run, 5))
        run.close()
    assert found[0] == found[1] and found[0] != found[2]
    assert found[0][0]["train_loss"] != found[2][0]["train_loss"]


@pytest.mark.skipif(not GIVEN, reason="FEDTUNE_FLWR_PYTHON names no interpreter with Flower")
def test_a_client_that_fails_fails_the_trial_with_its_place(python: str, tmp_path: Path) -> None:
    run = trial(python, "app", tmp_path, **{"fail-in-round": 2})
    with pytest.raises(UserError, match=r"client_app.py:\d+: ValueError: a client that fails"):
        first(run, 5)
    run.close()
    wait_for(lambda: not processes(run.folder.parent))
