"""Runs of one process give what they give alone: in threads, within each other, and whatever modes somebody has set."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
import torch

import fedtune
from fedtune.core import process, randomness
from fedtune.core.errors import UserError
from fedtune.core.process import one_thread
from fedtune.nn import architectures

SMALL = {"rounds": 2, "clients": 4, "local_epochs": 1}
STACK = {"executor": "stack"}  # where both are right, which is faster is measured
NET = """
import time
from torch import nn
def net(shape, classes, width=8):
    made = nn.Module()
    layers = [nn.Flatten(), nn.Linear(64, width)]
    time.sleep(0.003)  # so that another thread runs between two layers
    made.body = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, width))
    made.head = nn.Linear(width, classes)
    return made
"""
WITHIN = """
from dataclasses import dataclass
import fedtune
from fedtune import Algorithm
SMALL = dict(rounds=1, clients=4, local_epochs=1)
def another(scores, y):
    return fedtune.train("fedavg", seed=5, **SMALL)["val_loss"][0]
@dataclass(frozen=True)
class Plays(Algorithm):
    shared = ("body", "head")
    def report(self, server):
        return {"another": fedtune.train("fedavg", seed=5, **SMALL)["val_loss"][0]}
@dataclass(frozen=True)
class Early(Algorithm):
    shared = ("body", "head")
    def loss(self, m, batch, down):
        fedtune.train("fedavg", **SMALL)  # here
        return super().loss(m, batch, down)
"""


def played(*args: Any, **options: Any) -> pd.DataFrame:
    return fedtune.train(*args, **SMALL, **options).drop(columns=["seconds", "eval_seconds"])


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [done.result() for done in [pool.submit(job) for job in jobs]]


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path}/net.py:net"


def test_first_weights_are_the_seeds_whatever_other_threads_make(net: str) -> None:
    alone = {seed: architectures.build("cnn8", (1, 8, 8), 10, 0, seed).state_dict() for seed in range(4)}
    made = at_once(
        *[lambda s=s: (s, architectures.build("cnn8", (1, 8, 8), 10, 0, s).state_dict()) for s in (*alone,) * 16]
    )
    assert all(torch.equal(t, alone[seed][n]) for seed, of in made for n, t in of.items())


def test_runs_of_several_threads_are_what_they_are_alone(net: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "net.py").write_text(NET.replace("ReLU", "Tanh"))  # another file of the same name
    nets = [net, f"{tmp_path}/other/net.py:net"]
    alone = [played("fedavg", model=model, seed=seed, **STACK) for model in nets for seed in (0, 1)]
    assert not alone[0].equals(alone[2])
    threads, chance = torch.get_num_threads(), torch.get_rng_state()
    found = at_once(*[lambda m=m, s=s: played("fedavg", model=m, seed=s, **STACK) for m in nets for s in (0, 1)] * 2)
    for i, rows in enumerate(found):
        pd.testing.assert_frame_equal(rows, alone[i % 4], check_exact=True)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), chance)


def test_a_study_of_several_jobs_has_the_values_of_one(net: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective = fedtune.objective("fedavg", model=net, objective="val_loss", **SMALL)
    values = set()
    for jobs in (1, 2, 4):
        study = optuna.create_study(direction="minimize")
        for _ in range(4):
            study.enqueue_trial({"lr": 0.1, "momentum": 0.5, "local_epochs": 1})
        study.optimize(objective, n_trials=4, n_jobs=jobs)
        values |= {trial.value for trial in study.trials}
    assert len(values) == 1


def test_a_round_waits_for_the_turn_of_another_thread() -> None:
    begun, done = threading.Event(), threading.Event()

    def play() -> None:
        begun.set()
        played("fedavg")
        done.set()

    with process.turn():
        thread = threading.Thread(target=play)
        thread.start()
        begun.wait()
        assert not done.wait(0.2)
    thread.join()
    assert done.is_set()


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "float64", "autocast"])
def test_what_mode_the_caller_is_in_changes_nothing_and_stays(mode: str) -> None:
    alone = played("fedavg")
    modes = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }
    try:
        if mode == "float64":
            torch.set_default_dtype(torch.float64)
            found = played("fedavg")
            assert torch.get_default_dtype() is torch.float64
        else:
            with modes[mode]():
                found = played("fedavg")
                assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
                assert torch.is_grad_enabled() == (mode == "autocast")
    finally:
        torch.set_default_dtype(torch.float32)
    pd.testing.assert_frame_equal(found, alone, check_exact=True)


def test_on_a_gpu_only_kernels_that_repeat_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)
    before = cudnn.enabled, cudnn.allow_tf32
    with process.at_work():
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        assert (cudnn.enabled, cudnn.allow_tf32) == before
    assert (cudnn.deterministic, cudnn.benchmark) == (False, True)


def test_a_run_within_a_run_in_a_metric_or_the_servers_code_and_not_in_client_code(tmp_path: Path) -> None:
    (tmp_path / "within.py").write_text(WITHIN)
    inner = fedtune.train("fedavg", seed=5, rounds=1, clients=4, local_epochs=1)["val_loss"][0]
    loop = {"executor": "loop"}  # else steps are tried 60 times, each with a run of its own
    alone = played("fedavg", **loop)
    rows = played("fedavg", metric=[f"{tmp_path}/within.py:another"], **loop)
    assert rows["val_another"].tolist() == [inner] * 2 and rows["val_loss"].tolist() == alone["val_loss"].tolist()
    rows = played(f"{tmp_path}/within.py:Plays", **loop)
    assert rows["another"].tolist() == [inner] * 2 and rows["val_loss"].tolist() == alone["val_loss"].tolist()
    with pytest.raises(UserError, match=r"within\.py:17.* cannot start inside another run's client code"):
        played(f"{tmp_path}/within.py:Early", **loop)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_the_turn_that_a_thread_of_its_parent_holds() -> None:
    holds, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with randomness.seeded(0):
            holds.set()
            let_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    if (child := os.fork()) == 0:
        with one_thread():
            os._exit(7)
    let_go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
