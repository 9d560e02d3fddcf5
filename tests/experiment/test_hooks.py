"""A method of a user's own that gives what it must not is told in one line, with its place; nothing is trained."""

import inspect
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
KEPT = "def keep(self, task):\n    return {'seen': torch.zeros(())}\n"
BEST = "def init(self, task):\n    return {'best': torch.zeros(())}\n"
CASES = {  # a method, and in which way; what it does; what is said of it; what else stands in the class
    "receive, other names": ("return {'tail.weight': down['shared']['head.weight']}", "the model has no 'tail.weight'"),
    "receive, None": ("return None", "returns None; {} is nothing"),
    "receive, a tensor": ("return down['shared']['head.bias']", "a tensor of float32"),
    "receive, a generator": ("yield from down['shared'].items()", "returns a generator"),
    "receive, one client's": (
        "return {n: t[0] for n, t in down['shared'].items()}",
        r"it is a tensor of float32 \[\d+, 64\]",
    ),
    "receive, another type": ("return {n: t.double() for n, t in down['shared'].items()}", "it is a tensor of float64"),
    "broadcast, no client axis": (
        "return {'shared': server['shared']}",
        "a first axis of the 3 clients, but shared/body",
    ),
    "broadcast, a list": ("return [server['shared']]", "returns a list"),
    "deployed, None": ("pass", "returns None"),
    "aggregate, None": ("super().aggregate(server, up, task)", "returns None"),
    "aggregate, entries lost": ("return {}", "shared is left out"),
    "aggregate, a client's": ("return server | {'shared': up['shared']}", r"is a tensor of float32 \[3, \d+, 64\]"),
    "aggregate, another type": (
        "return {'shared': {n: t.double() for n, t in super().aggregate(server, up, task)['shared'].items()}}",
        r"is a tensor of float64 \[",
    ),
    "observe, a tuple": ("return server, val_acc", "returns a tuple"),
    "observe, an entry lost": ("return {'shared': server['shared']}", "best is left out", BEST),
    "report, a tensor": ("return {'norm': server['shared']['head.bias'].norm()}", "'norm' is a tensor of float32"),
    "report, a metric of fedtune's": ("return {'comm_mb': 0.5}", "comm_mb is a metric of fedtune's"),
    "report, a number": ("return 1.0", "returns 1.0"),
    "upload, a tensor": ("return data.x.mean(0)", "returns a tensor"),
    "upload, None": ("{'mean': data.x.mean(0)}", "returns None"),
    "upload, a number": ("return {'rows': len(data.y)}", "rows is"),
    "upload_noise, shapes": (
        "return {'e': (3,)}",
        "'e' is a tuple",
        "def upload(self, m, data, down):\n    return {}\n",
    ),
    "keep, a number": ("return {'seen': 0}", "seen is 0; torch.tensor"),
    "remember, None": ("pass", "returns None", KEPT),
    "remember, other names": ("return {'met': torch.zeros(())}", "returns met float32", KEPT),
    "phases, one without a comma": ("return Phase(self.loss)", r"write \(Phase\(…\),\)"),
    "phases, None": ("pass", "returns None"),
    "phases, a part that there is not": ("return (Phase(self.loss, train=('boddy',)),)", "names 'boddy'"),
    "phases, parts in a text": ("return (Phase(self.loss, train='body'),)", r"write \('body',\) with the comma"),
    "phases, half an epoch": ("return (Phase(self.loss, epochs=0.5),)", "it is 0.5"),
    "round, another word": ("return (DOWN, Phase(self.loss), 'upload')", "contains 'upload'"),
    "adapt, a loss": ("return (self.loss,)", "contains a method"),
    "predict, classes": ("return m.head(m.body(x)).argmax(1)", "a tensor of int64"),
    "predict, None": ("m.head(m.body(x))", "returns None"),
    "init, a list": ("return [torch.zeros(3)]", "returns a list"),
    "init, an entry that is sent": ("return {}", "there is no means", "sends = ('means',)\n"),
    "build, None": ("net.proj = nn.Linear(3, 3)", "returns None; return net"),
    "build, a loose tensor": ("net.scale = nn.Parameter(torch.ones(()))\n    return net", "scale is in none of them"),
    "stays, another name": ("return {'head'}", "there is no 'head'"),
    "stays, a text": ("return 'head.bias'", "returns 'head.bias'"),
    "resolved_defaults, None": ("pass", "returns None"),
}


def in_class(name: str) -> str:
    """What stands in the class of a case, its method last."""
    code, _, *before = CASES[name]
    hook = name.split(",")[0]
    arguments = ", ".join(inspect.signature(getattr(fedtune.Algorithm, hook)).parameters)
    return f"{''.join(before)}def {hook}({arguments}):\n    {code}"


def written(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(HEAD + textwrap.indent(body, " " * 4) + "\n")
    return f"{folder}/mine.py"


OF_CLIENTS = ("receive", "upload", "keep", "remember", "predict")  # what vmap runs, or a loop; the rest neither


@pytest.mark.parametrize(
    ("name", "executor"),
    [(name, how) for name in CASES for how in ("stack", "loop")[: 1 + name.startswith(OF_CLIENTS)]],
)
def test_what_a_method_must_not_give_is_told_with_its_line(name: str, executor: str, tmp_path: Path) -> None:
    body, said, hook = in_class(name), CASES[name][1], name.split(",")[0]
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
    mine = written(tmp_path, in_class("receive, other names"))
    broken = [v.violation for v in fedtune.Check(mine).verdicts if v.status == "failed"]
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
