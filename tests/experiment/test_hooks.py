"""A method of a user's own that gives what it must not is told in one line, with its place; nothing is trained."""

import textwrap
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedtune
from fedtune.core.errors import UserError
from fedtune.engine.simulation import Simulation
from fedtune.experiment import partitioning, scenarios
from fedtune.experiment.experiment import Experiment
from fedtune.user_code import user_files

SMALL = {"rounds": 2, "clients": 3, "local_epochs": 1, "model": "mlp"}
HEAD = """
from dataclasses import dataclass
import torch
from torch import nn
from fedtune import Algorithm, Noise, Phase
from fedtune.experiment.algorithm import DOWN, UP, Step
@dataclass(frozen=True)
class Mine(Algorithm):
    shared = ("body", "head")
"""
CASES = {  # what stands in the class; the method that is named, and what is said of it
    "receive, other names": (
        "def receive(self, down):\n    return {'tail.weight': down['shared']['head.weight']}",
        "the model has no 'tail.weight'",
    ),
    "receive, None": ("def receive(self, down):\n    return None", "returns None; {} is nothing"),
    "receive, a tensor": ("def receive(self, down):\n    return down['shared']['head.bias']", "a tensor of float32"),
    "receive, a generator": ("def receive(self, down):\n    yield from down['shared'].items()", "returns a generator"),
    "receive, one client's": (
        "def receive(self, down):\n    return {n: t[0] for n, t in down['shared'].items()}",
        r"it is a tensor of float32 \[\d+, 64\]",
    ),
    "receive, another type": (
        "def receive(self, down):\n    return {n: t.double() for n, t in down['shared'].items()}",
        "it is a tensor of float64",
    ),
    "broadcast, no client axis": (
        "def broadcast(self, server, ids, task):\n    return {'shared': server['shared']}",
        "a first axis of the 3 clients, but shared/body",
    ),
    "broadcast, a list": ("def broadcast(self, server, ids, task):\n    return [server['shared']]", "returns a list"),
    "deployed, None": ("def deployed(self, server, ids, task):\n    pass", "returns None"),
    "aggregate, None": (
        "def aggregate(self, server, up, task):\n    super().aggregate(server, up, task)",
        "returns None",
    ),
    "aggregate, entries lost": ("def aggregate(self, server, up, task):\n    return {}", "shared is left out"),
    "aggregate, a client's": (
        "def aggregate(self, server, up, task):\n    return server | {'shared': up['shared']}",
        r"is a tensor of float32 \[3, \d+, 64\]",
    ),
    "aggregate, another type": (
        "def aggregate(self, server, up, task):\n    new = super().aggregate(server, up, task)['shared']\n"
        "    return {'shared': {n: t.double() for n, t in new.items()}}",
        r"is a tensor of float64 \[",
    ),
    "observe, a tuple": ("def observe(self, server, val_acc, task):\n    return server, val_acc", "returns a tuple"),
    "observe, an entry lost": (
        "def init(self, task):\n    return {'best': torch.zeros(())}\n"
        "def observe(self, server, val_acc, task):\n    return {'shared': server['shared']}",
        "best is left out",
    ),
    "report, a tensor": (
        "def report(self, server):\n    return {'norm': server['shared']['head.bias'].norm()}",
        "'norm' is a tensor of float32",
    ),
    "report, a number": ("def report(self, server):\n    return 1.0", "returns 1.0"),
    "upload, a tensor": ("def upload(self, m, data, down):\n    return data.x.mean(0)", "returns a tensor"),
    "upload, None": ("def upload(self, m, data, down):\n    {'mean': data.x.mean(0)}", "returns None"),
    "upload, a number": ("def upload(self, m, data, down):\n    return {'rows': len(data.y)}", "rows is"),
    "upload_noise, shapes": (
        "def upload_noise(self, task):\n    return {'e': (3,)}\ndef upload(self, m, data, down):\n    return {}",
        "'e' is a tuple",
    ),
    "keep, a number": ("def keep(self, task):\n    return {'seen': 0}", "seen is 0; torch.tensor"),
    "remember, None": (
        "def keep(self, task):\n    return {'seen': torch.zeros(())}\ndef remember(self, m, data, down):\n    pass",
        "returns None",
    ),
    "remember, other names": (
        "def keep(self, task):\n    return {'seen': torch.zeros(())}\n"
        "def remember(self, m, data, down):\n    return {'met': torch.zeros(())}",
        "returns met float32",
    ),
    "phases, one without a comma": ("def phases(self, task):\n    return Phase(self.loss)", r"write \(Phase\(…\),\)"),
    "phases, None": ("def phases(self, task):\n    pass", "returns None"),
    "phases, a part that there is not": (
        "def phases(self, task):\n    return (Phase(self.loss, train=('boddy',)),)",
        "names 'boddy'",
    ),
    "phases, parts in a text": (
        "def phases(self, task):\n    return (Phase(self.loss, train='body'),)",
        r"write \('body',\) with the comma",
    ),
    "phases, half an epoch": ("def phases(self, task):\n    return (Phase(self.loss, epochs=0.5),)", "it is 0.5"),
    "round, another word": (
        "def round(self, task):\n    return (DOWN, Phase(self.loss), 'upload')",
        "contains 'upload'",
    ),
    "adapt, a loss": ("def adapt(self, task):\n    return (self.loss,)", "contains a method"),
    "predict, classes": ("def predict(self, m, x, down):\n    return m.head(m.body(x)).argmax(1)", "a tensor of int64"),
    "predict, None": ("def predict(self, m, x, down):\n    m.head(m.body(x))", "returns None"),
    "init, a list": ("def init(self, task):\n    return [torch.zeros(3)]", "returns a list"),
    "init, an entry that is sent": ("sends = ('means',)\ndef init(self, task):\n    return {}", "there is no means"),
    "build, None": ("def build(self, net, task):\n    net.proj = nn.Linear(3, 3)", "returns None; return net"),
    "build, a loose tensor": (
        "def build(self, net, task):\n    net.scale = nn.Parameter(torch.ones(()))\n    return net",
        "scale is in none of them",
    ),
    "stays, another name": ("def stays(self, net):\n    return {'head'}", "there is no 'head'"),
    "stays, a text": ("def stays(self, net):\n    return 'head.bias'", "returns 'head.bias'"),
    "resolved_defaults, None": ("def resolved_defaults(self):\n    pass", "returns None"),
}


def written(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(HEAD + textwrap.indent(body, " " * 4) + "\n")
    return f"{folder}/mine.py"


OF_CLIENTS = ("receive", "upload", "keep", "remember", "predict")  # what vmap runs, or a loop; the rest neither


@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, how) for name in CASES for how in ("stack", "loop")[: 1 + name.startswith(OF_CLIENTS)]],
)
def test_what_a_method_must_not_give_is_told_with_its_line(name: str, executor: str, tmp_path: Path) -> None:
    body, said = CASES[name]
    hook = name.split(",")[0]
    line = HEAD.count("\n") + 1 + body[: body.rindex(f"def {hook}(")].count("\n")
    with pytest.raises(UserError, match=rf"mine\.py:{line}: Mine\.{hook} must return .*{said}"):
        scenario = scenarios.find("digits-w4").override(**SMALL)
        experiment = Experiment(
            algorithm=user_files.take(written(tmp_path, body))[0], scenario=scenario, executor=executor
        )
        experiment.default()
        simulation = Simulation(experiment, {}, partitioning.make(experiment.scenario, 0))
        simulation.step(), simulation.step()


LOSSES = {  # what stands in `loss`, and what is said of it
    "return nn.functional.cross_entropy(m.head(m.body(batch.x)), batch.y, reduction='none')": (
        r"loss must return one number, .* but returns a tensor of float32 \[8\]"
    ),
    "return super().loss(m, batch, down).detach()": "what its phase trains",
    "pass": "one number.* returns None",
    "return super().loss(m, batch, down), 1": "a dict of tensors.* also 1",
}


@pytest.mark.parametrize("body", LOSSES)
@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_a_loss_that_is_no_number_is_told_with_its_line(body: str, executor: str, tmp_path: Path) -> None:
    line = HEAD.count("\n") + 1
    with pytest.raises(UserError, match=rf"mine\.py:{line}: .*{LOSSES[body]}"):
        code = f"def loss(self, m, batch, down):\n    {body}"
        fedtune.train(written(tmp_path, code), executor=executor, **SMALL)


def test_check_names_the_line_of_a_method_that_gives_what_it_must_not(tmp_path: Path) -> None:
    body, _ = CASES["receive, other names"]
    broken = [v.violation for v in fedtune.Check(written(tmp_path, body)).verdicts if v.status == "failed"]
    assert broken and broken[0] and broken[0].place == f"mine.py:{HEAD.count(chr(10)) + 1}"
    assert "Mine.receive must return" in broken[0].what


PERSONAL = "def receive(self, down):\n    return {n: t for n, t in down['shared'].items() if n.startswith('body')}"


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_what_is_not_received_stays_the_clients_own_as_if_it_were_not_shared(executor: str, tmp_path: Path) -> None:
    clock = ["seconds", "eval_seconds", *(f"{way}_{n}" for way in ("up", "down") for n in ("floats", "bytes", "ints"))]
    given = fedtune.train(written(tmp_path, PERSONAL), executor=executor, participation=0.7, **SMALL)
    fedper = fedtune.train("fedper", executor=executor, participation=0.7, **SMALL)
    same = [c for c in fedper.columns if c not in clock and c != "comm_mb"]
    pd.testing.assert_frame_equal(given[same], fedper[same], check_exact=True)


def test_what_is_received_in_some_rounds_is_kept_in_the_others(tmp_path: Path) -> None:
    body = (
        "def broadcast(self, server, ids, task):\n    down = super().broadcast(server, ids, task)\n"
        "    return down if task.t == 2 else {'shared': {n: t for n, t in down['shared'].items() if 'body' in n}}"
    )
    algorithm = user_files.take(written(tmp_path, body))[0]
    experiment = Experiment(
        algorithm=algorithm, scenario=scenarios.find("digits-w4").override(**{**SMALL, "rounds": 3})
    )
    simulation = Simulation(experiment, {}, partitioning.make(experiment.scenario, 0))
    heads = []
    for _ in range(3):
        simulation.step()
        heads.append(simulation.state.groups[0].tensors["head.bias"].clone())
    assert all(not torch.equal(h[0], h[1]) for h in heads)
    assert simulation.state_dict()["groups"][0]["tensors"].keys() >= {"head.weight", "head.bias"}  # in the checkpoint
    assert "each client's own head" in experiment.describe_scoring()


def test_one_global_model_is_not_scored_where_a_part_stays_with_the_clients(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="scores one global model, but under .* head.* stays with each client"):
        fedtune.train(written(tmp_path, PERSONAL), evaluation="pooled", **SMALL)
