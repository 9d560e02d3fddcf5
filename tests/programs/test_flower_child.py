"""What runs a Flower app: its rows, its random numbers, and one line for every app that cannot be.

Most tests use the small part of Flower in support/fake_flower; test_flower_real.py has the real one.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.flower_apps import CLIENT, SERVER, SERVER_OF_BEFORE, flower_app, run_app

from fedtune.programs import flower_child


def rows(said: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("fedtune ")) for line in said.splitlines() if line.startswith("fedtune ")]


def test_every_round_is_a_row_of_numbers_from_all_who_measured(tmp_path: Path) -> None:
    done = run_app(flower_app(tmp_path / "app"), clients=9)
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert [row["round"] for row in found] == [1, 2, 3]  # round 0 was before training
    assert found[0]["client_clients"] == 9  # all nodes are there at once
    assert {*found[0]} == {"round", "train_clients", "train_first", "client_eval_acc", "client_clients", "server_loss"}
    assert [row["server_loss"] for row in found] == [0.5, 0.25, 0.5 / 3]


def test_strategies_of_before_report_too(tmp_path: Path) -> None:
    app = flower_app(tmp_path / "app", server=SERVER_OF_BEFORE)
    one, again = (rows(run_app(app).stdout) for _ in range(2))
    assert [row["round"] for row in one] == [1, 2, 3] and one == again
    assert {*one[0]} == {*("round", "train_first", "server_loss", "server_accuracy", "client_loss", "client_accuracy")}
    assert [row["client_loss"] for row in one] == [2.0, 1.0, 2 / 3]


def test_a_seed_gives_the_same_figures_and_another_seed_others(tmp_path: Path) -> None:
    app = flower_app(tmp_path / "app")
    one, again, other = (rows(run_app(app, seed=seed).stdout) for seed in (1, 1, 2))
    assert one == again and one[0]["train_first"] != other[0]["train_first"]
    assert len({row["train_first"] for row in one}) == 3


def test_both_apps_see_the_run_config_by_dotted_keys(tmp_path: Path) -> None:
    given = {"num-server-rounds": 1, "model": {"width": 9}, "opt": "a b=c"}
    done = run_app(flower_app(tmp_path / "app"), set=given)
    expected = {"fair": True, "local-epochs": 2, "lr": 0.5, "model.width": 9, "num-server-rounds": 1, "opt": "a b=c"}
    assert f"config {expected}" in done.stdout


def test_a_client_that_fails_ends_the_run_with_its_place(tmp_path: Path) -> None:
    app = flower_app(tmp_path / "app")
    line = CLIENT.splitlines().index('        raise ValueError("out of luck")') + 1
    done = run_app(app, set={"opt": "fail"})
    assert done.returncode == 1 and len(rows(done.stdout)) == 1
    assert done.stderr.splitlines()[-1] == (
        f"client 1 failed, so a mean would be of fewer clients: {app}/own/client.py:{line}: ValueError: out of luck"
    )


ENDED = """
import signal, sys, threading, time

signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does

def app(grid, context):
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise RuntimeError("Ending simulation.") from Exception("SAYS")
"""


@pytest.mark.parametrize(
    ("says", "status"), [("Runtime crashed.", 1), ("The current node timed out during startup.", -15)]
)
def test_what_flower_ends_with_ends_the_run_as_if_from_outside_if_its_ray_was_late(
    says: str, status: int, tmp_path: Path
) -> None:
    """A thread of Flower's own waits on."""
    done = run_app(flower_app(tmp_path / "app", server=ENDED.replace("SAYS", says)))
    assert done.returncode == status and done.stderr.splitlines()[-1] == "RuntimeError: Ending simulation."


def test_failed_clients_are_tolerated_where_that_is_said(tmp_path: Path) -> None:
    app = flower_app(tmp_path / "app")
    done = run_app(app, set={"opt": "fail"}, tolerant=True)
    assert done.returncode == 0 and [row["train_clients"] for row in rows(done.stdout)] == [2, 1, 2]


LAZY = """
import random
from flwr.serverapp.strategy import Result
from flwr.simulation import Message

def app(grid, context):
    def messages():
        for node in random.sample(grid.get_node_ids(), 1):
            yield Message("train", node, "go")
    result = Result()
    for round in range(1, 9):
        (reply,) = grid.send_and_receive(messages=messages(), timeout=TIMEOUT)
        result.train_metrics_clientapp[round] = {"node": reply.metadata.src_node_id}
"""


def test_messages_may_draw_when_they_are_sent(tmp_path: Path) -> None:
    found = rows(run_app(flower_app(tmp_path / "app", server=LAZY.replace("TIMEOUT", "None"))).stdout)
    assert len({row["train_node"] for row in found}) > 1


def test_clients_that_do_not_answer_in_time_end_the_run(tmp_path: Path) -> None:
    done = run_app(flower_app(tmp_path / "app", server=LAZY.replace("TIMEOUT", "0")))
    assert done.returncode == 1 and done.stderr.startswith("only 0 of 1 clients answered in time")


def test_the_app_sees_nothing_of_fedtune(tmp_path: Path) -> None:
    told = "'path', [p for p in sys.path if 'fedtune/programs' in p]"
    server = f"import os, sys\nprint({told})\n"
    done = run_app(flower_app(tmp_path / "app", server=server + SERVER))
    assert "path []" in done.stdout


def test_clients_get_the_resources_of_the_federation_and_of_the_trial(tmp_path: Path) -> None:
    app, asked = flower_app(tmp_path / "app"), {"num_cpus": 2.0, "num_gpus": 0.25}
    done = run_app(app, client_resources=asked, FEDTUNE_CPUS="4", FEDTUNE_GPU_SHARE="0.5")
    # a quarter of the GPU, of which the trial has half
    assert "client {'num_cpus': 2.0, 'num_gpus': 0.5} cpus 4" in done.stdout
    for variable, said in (
        ({"FEDTUNE_CPUS": "1"}, "a client uses 2.0 CPUs, but a trial has 1"),
        ({"FEDTUNE_GPU_SHARE": "0.2"}, "a client uses 0.25 of a GPU, but a trial has 0.2"),
    ):
        done = run_app(app, client_resources=asked, **variable)
        assert done.returncode == flower_child.WRONG and done.stderr.startswith(said)


def test_what_the_run_needed_is_removed(tmp_path: Path) -> None:
    """Also what a killed run left; not what another one uses."""
    (tmp_path / "tmp").mkdir()
    left, used = (tmp_path / "tmp" / f"{flower_child.TEMPORARY}{name}" for name in ("left", "used"))
    left.mkdir()
    used.mkdir()
    lock = flower_child.locked(used)
    short = Path("/tmp") / tmp_path.name[-8:]
    short.symlink_to(tmp_path / "tmp")
    try:
        assert run_app(flower_app(tmp_path / "app"), TMPDIR=str(short)).returncode == 0
    finally:
        short.unlink()
    assert lock and [p.name for p in (tmp_path / "tmp").iterdir()] == [used.name]


def test_it_needs_python_3_9_and_flower_only() -> None:
    text = Path(flower_child.__file__).read_text()
    ast.parse(text, feature_version=(3, 9))
    assert {name.split(".")[0] for name in imported(text)} <= {*sys.stdlib_module_names, "flwr"}


def imported(text: str) -> set[str]:
    nodes = [*ast.walk(ast.parse(text))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
