"""Flower apps of the tests' own, for the part of Flower that lies in support/fake_flower."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedtune.programs import flower_child

FAKE = Path(__file__).parent / "fake_flower"
PYPROJECT = """
[tool.flwr.app.components]
serverapp = "own.server:app"
clientapp = "own.client:app"
[tool.flwr.app.config]
num-server-rounds = 3
lr = 0.5
local-epochs = 2
opt = "sgd"
fair = true
model.width = 8
[tool.flwr.federations]
default = "here"
[tool.flwr.federations.here]
options.num-supernodes = 3
options.backend.client-resources.num-cpus = 1
"""
CONFIG = {"num-server-rounds": 3, "lr": 0.5, "local-epochs": 2, "opt": "sgd", "fair": True, "model": {"width": 8}}
CLIENT = """
import random

def app(message, context):
    if message.content == "fail" and context.node_config["partition-id"] == 1:
        raise ValueError("out of luck")
    seen = context.state.setdefault("seen", [])
    seen.append(message.content)
    assert list(context.state) == ["seen"]
    return {"draw": random.random(), "lr": context.run_config["lr"], "seen": len(seen)}
"""
SERVER = """
import random
from flwr.serverapp.strategy import Result

def app(grid, context):
    config = context.run_config
    print("config", dict(sorted(config.items())), flush=True)
    result = Result()
    result.evaluate_metrics_serverapp[0] = {"accuracy": 0.0}
    for round in range(1, config["num-server-rounds"] + 1):
        some = random.sample(grid.get_node_ids(), 2)
        replies = grid.send("train", "fail" if config["opt"] == "fail" and round == 2 else "go", some)
        draws = [reply.content["draw"] for reply in replies if not reply.has_error()]
        result.train_metrics_clientapp[round] = {"clients": len(draws), "first": draws[0], "all": draws}
        replies = grid.send("evaluate", "go")
        metrics = {"eval-acc": sum(reply.content["draw"] for reply in replies) / 3, "clients": len(replies)}
        result.evaluate_metrics_clientapp[round] = metrics
        result.evaluate_metrics_serverapp[round] = {"loss": config["lr"] / round, "fair": config["fair"]}
    assert dict(result.evaluate_metrics_serverapp)[0] == {"accuracy": 0.0}
"""
SERVER_OF_BEFORE = """
from flwr.server.history import History
from flwr.server import server

def app(grid, context):
    history = History()
    for round in range(1, context.run_config["num-server-rounds"] + 1):
        results, failures = server.fit_clients(grid, "go")
        history.add_metrics_distributed_fit(server_round=round, metrics={"first": results[0][1]["draw"]})
        history.add_loss_centralized(server_round=round, loss=1 / round)
        history.add_metrics_centralized(server_round=round, metrics={"accuracy": 0.5})
        results, failures = server.evaluate_clients(grid, "go")
        history.add_loss_distributed(server_round=round, loss=2 / round)
        history.add_metrics_distributed(round, {"accuracy": results[0][1]["draw"]})
    assert len(history.kept) == 5 * round
"""


def flower_app(folder: Path, pyproject: str = PYPROJECT, server: str = SERVER, client: str = CLIENT) -> Path:
    """A Flower app in a folder."""
    (folder / "own").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(pyproject)
    (folder / "own" / "server.py").write_text(server)
    (folder / "own" / "client.py").write_text(client)
    return folder


def run_app(
    folder: Path, *more: str, python: str = sys.executable, flower: Path | None = FAKE, set: Any = (), **said: Any
) -> subprocess.CompletedProcess[str]:
    """What `flower_child.py` makes of an app.  set: of its run config; said: other entries of its file, variables."""
    file = folder.parent / "app.json"
    app = {"folder": str(folder), "serverapp": "own.server:app", "clientapp": "own.client:app", "clients": 3, "seed": 0}
    app |= {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {}, "tolerant": False}
    variables = {name: said.pop(name) for name in list(said) if name.isupper()}
    file.write_text(json.dumps(app | {"config": CONFIG | dict(set)} | said))
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environment |= {"PYTHONPATH": str(flower)} if flower else {}
    return subprocess.run(
        [python, *(["-S"] if flower else []), flower_child.__file__, str(file), *more],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
