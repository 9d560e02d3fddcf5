"""Runs outside a search as Ray tasks: seeds of one configuration share a task, and none is lost when it is killed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedtune.core.objectives import ACCURACY
from fedtune.data import datasets
from fedtune.engine.built_in import ENGINE
from fedtune.experiment.experiment import Experiment
from fedtune.studies import ray_tasks
from fedtune.studies.ray_tasks import Outcome, RunTask
from tests.support.helpers import CLOCK, DIGITS
from tests.support.searches import actors
from tests.support.waiting import wait_for

SCENARIO = DIGITS.override(rounds=40)
RUNS = [
    RunTask(
        f"{name}, seed {seed}",
        Experiment(algorithm="fedavg", scenario=SCENARIO, seed=seed, executor="rule", trainer=ENGINE),
        config,
    )
    for seed in (100, 101, 102)
    for name, config in (("best", {"lr": 0.05}), ("default", {}))
]


def train(folder: Path | None = None) -> dict[str, Outcome]:
    data = {"digits": datasets.load("digits")}
    return ray_tasks.run_all(RUNS, data, folder, title="final check", concurrent=2, objective=ACCURACY)


def figures(outcome: Outcome) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    rows = [{n: v for n, v in row.items() if n not in CLOCK} for row in outcome.rounds]
    return rows, outcome.clients, outcome.reason


@pytest.fixture(scope="module")
def undisturbed(one_ray: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("runs")
    return folder, train(folder)


def test_every_run_of_a_pack_leaves_a_file_of_its_own(undisturbed: tuple[Path, dict[str, Outcome]]) -> None:
    folder, outcomes = undisturbed
    assert list(outcomes) == [run.label for run in RUNS]
    assert len(list(folder.glob("*.json"))) == len(RUNS)
    assert all([r["round"] for r in o.rounds] == list(range(1, 41)) for o in outcomes.values())
    assert all([c["scored"] for c in o.clients] == ["last", "best"] for o in outcomes.values())
    assert len({o.rounds[-1]["val_loss"] for o in outcomes.values()}) == len(RUNS)
    again = ray_tasks.finished(RUNS, folder)
    assert {n: figures(o) for n, o in again.items()} == {n: figures(o) for n, o in outcomes.items()}


@pytest.mark.long
def test_a_pack_whose_worker_is_killed_is_trained_again_to_the_same_numbers(
    undisturbed: tuple[Path, dict[str, Outcome]],
) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(train)
        os.kill(wait_for(lambda: actors(os.getpid(), "train_seeds"))[0], signal.SIGKILL)
        found = running.result(timeout=300)
    assert {n: figures(o) for n, o in found.items()} == {n: figures(o) for n, o in undisturbed[1].items()}


def test_where_nothing_is_left_to_run_no_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--final-seeds 0` showed a bar "final check 0/0"."""
    monkeypatch.setattr(ray_tasks, "progress", lambda title: pytest.fail(f"a bar of {title}"))
    assert ray_tasks.run_all([], {}, title="final check") == {}
