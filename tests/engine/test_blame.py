"""An error that a model or a value causes is one line of the user's: the place, the layer, whose; never a bug."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.helpers import DIGITS, random_federation
from torch import Tensor, nn

from fedtune.core.errors import UserError
from fedtune.data.federation import Federation
from fedtune.engine.simulation import Seeds, Simulation
from fedtune.experiment.experiment import Experiment
from fedtune.nn import architectures
from fedtune.user_code import user_files

NETS = """
import torch
import torch.nn.functional as F
from torch import nn
from dataclasses import dataclass
from fedtune.experiment.algorithm import Algorithm


class Net(nn.Module):
    def __init__(self, body, width, classes):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)


class Bag(nn.Module):
    def __init__(self, look_up):
        super().__init__()
        self.table, self.look_up = nn.Parameter(torch.randn(11, 6)), look_up

    def forward(self, x):
        return self.look_up(self.table, x).mean(1)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def plain(shape, classes): return Net(nn.Sequential(nn.Embedding(11, 6), Mean()), 6, classes)
def bags(shape, classes): return Net(nn.EmbeddingBag(11, 6), 6, classes)
def functional(shape, classes): return Net(Bag(lambda w, x: F.embedding(x, w)), 6, classes)
def one_hot(shape, classes): return Net(Bag(lambda w, x: F.one_hot(x, 11).to(w) @ w), 6, classes)


@dataclass(frozen=True)
class Own(Algorithm):
    shared = ("head",)

    def loss(self, m, batch, down):
        return F.nll_loss(m.head(m.body(batch.x)).log_softmax(1), batch.y) + m["head.bias"].square().sum()


@dataclass(frozen=True)
class Sends(Algorithm):
    shared = ("head",)

    def upload(self, m, data, down):
        return {"seen": F.embedding(data.x, m["body.0.weight"]).mean(), "mine": F.one_hot(data.y, 20).sum(0)}

    def aggregate(self, server, up, task):
        return super().aggregate(server, up, task)


class InTraining(nn.Module):
    def __init__(self, do):
        super().__init__()
        self.do = do

    def forward(self, x):
        return self.do(x) if self.training else x


def images(*layers): return nn.Sequential(*layers)
def normed(shape, classes): return Net(images(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), 8, classes)
def instance(shape, classes): return Net(
    images(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.InstanceNorm2d(4, track_running_stats=True), nn.Flatten()),
    4, classes)
def narrow(shape, classes): return Net(
    images(nn.Flatten(), InTraining(lambda x: x[:, :60]), nn.Linear(64, 8)), 8, classes)
def grouped(shape, classes): return Net(
    images(nn.Flatten(), nn.Linear(64, 8), InTraining(lambda x: F.group_norm(x, 3))), 8, classes)
def moved(shape, classes): return Net(
    images(nn.Flatten(), nn.Linear(64, 8), InTraining(lambda x: x.to("cuda"))), 8, classes)
def wide(shape, classes): return Net(
    images(nn.Flatten(), nn.Linear(64, 8), InTraining(lambda x: x.new_zeros(10**14))), 8, classes)
"""
OWNERS = (("north",), ("east",), ("south",))


def taken(tmp_path: Path, name: str) -> str:
    (tmp_path / "nets.py").write_text(NETS)
    return user_files.take(f"{tmp_path}/nets.py:{name}")[0]


def tokens(bad: int, row: int) -> Federation:
    """Sequences of three owners, this token in one row."""
    data = random_federation([9, 12, 7])
    x = np.random.default_rng(3).integers(0, 11, (len(data.y), 7))
    x[row, 2] = bad
    return data._replace(x=x, owners=OWNERS)


def error_of(algo: str, model: str, data: Federation, executor: str, **config: Any) -> str:
    scenario = DIGITS.override(model=model, features=0, clients=3, batch=config.pop("batch", 4), all_classes=0)
    with pytest.raises(UserError) as told:
        simulation = Simulation(
            Experiment(algorithm=algo, scenario=scenario, executor=executor), config | {"local_epochs": 3}, data
        )
        for _ in range(2):
            simulation.step()
    said, place = str(told.value), re.match(r"nets.py:(\d+)|\S+/nets.py:(\d+)", str(told.value))
    assert "\n" not in said
    below = getattr(told.value, "traceback", "")  # where a line of the file is named, Python's traceback begins in it
    assert not place or re.match(r'Traceback \(most recent call last\):\n  File "\S+/nets.py", line ', below), below
    return said


LOOKUPS = {
    "plain": "layer body.0 (Embedding): IndexError: index out of range in self",
    "bags": "layer body (EmbeddingBag): RuntimeError:",
    "functional": "nets.py:{line}, layer body (Bag): IndexError: index out of range in self",
    "one_hot": "nets.py:{line}, layer body (Bag): RuntimeError: Class values must be",
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("model", LOOKUPS)
def test_a_token_past_the_table_is_the_error_of_plain_pytorch_with_its_owner(
    model: str, executor: str, tmp_path: Path
) -> None:
    line = next((i for i, text in enumerate(NETS.splitlines(), 1) if text.startswith(f"def {model}(")), 0)
    for algo, split in (("fedavg", "train"), ("local", "val"), (taken(tmp_path, "Own"), "train")):
        row = int(getattr(tokens(11, 0), split).rows[1, 3 if split == "train" else 0])
        said = error_of(algo, taken(tmp_path, model), tokens(11, row), executor)
        assert LOOKUPS[model].format(line=line) in said
        assert said.endswith(" (owner east)")


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_negative_token_a_class_that_the_head_lacks_and_what_fails_where_clients_send_have_an_owner_too(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = int(tokens(0, 0).train.rows[2, 1])
    said = error_of("fedavg", taken(tmp_path, "functional"), tokens(-1, row), executor)
    assert said.endswith("index out of range in self (owner south)")
    data = tokens(0, 0)
    y = np.asarray(data.y).copy()
    y[row] = data.classes + 17
    said = error_of(taken(tmp_path, "Own"), taken(tmp_path, "functional"), data._replace(y=y), executor)
    assert re.search(r"nets.py:\d+: IndexError: Target \d+ is out of bounds. \(owner south\)$", said)
    monkeypatch.setattr("fedtune.experiment.algorithm.cross_entropy", lambda scores, y: scores.square().mean())
    said = error_of(taken(tmp_path, "Sends"), taken(tmp_path, "plain"), data._replace(y=y), executor)
    assert re.search(r"nets.py:\d+: RuntimeError: Class values must be .* \(owner south\)$", said)


def test_a_stack_of_several_seeds_names_the_run_s_own_client() -> None:
    data = tokens(0, 0)._replace(owners=())
    other = tokens(5000, int(data.train.rows[2, 1]))._replace(owners=())
    model = f"{Path(__file__).parents[1] / 'support' / 'user_nets.py'}:tokens"
    scenario = DIGITS.override(model=user_files.take(model)[0], features=0, clients=3, all_classes=0)
    simulation = Seeds(Experiment(algorithm="fedavg", scenario=scenario, executor="stack"), {}, {0: data, 1: other})
    with pytest.raises(UserError, match=r"IndexError: index out of range in self \(client 2\)$"):
        simulation.step()


IN_TRAINING = {
    "normed": "BatchNorm needs two rows in a training batch, or more than one position in each; give --batch 2 or more"
    "; layer body.2 (BatchNorm1d)",
    "instance": "InstanceNorm needs more than one position in its input for training; put it before the pooling; "
    "layer body.2 (InstanceNorm2d)",
    "narrow": "layer body.2 (Linear): RuntimeError: mat1 and mat2 shapes",
    "grouped": "layer body.2 (InTraining): RuntimeError: Expected number of channels",
    "moved": "layer body.2 (InTraining): ",
    "wide": "layer body.2 (InTraining): RuntimeError: ",
}


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("model", IN_TRAINING)
def test_what_fails_in_training_only_names_the_layer_and_no_client_as_all_fail(
    model: str, executor: str, tmp_path: Path
) -> None:
    if model == "moved" and torch.cuda.is_available():
        pytest.skip("it can be moved there")
    data = random_federation([9, 12, 7])._replace(owners=OWNERS)
    said = error_of("fedavg", taken(tmp_path, model), data, executor, batch=1)
    assert IN_TRAINING[model] in said and "owner" not in said


@pytest.mark.parametrize("model", ["normed", "resnet18"])
def test_a_batch_of_one_is_refused_beforehand_where_the_net_cannot_be_trained_on_it(model: str, tmp_path: Path) -> None:
    name = taken(tmp_path, model) if model in NETS else model
    experiment = Experiment(algorithm="fedavg", scenario=DIGITS.override(model=name, features=0))
    experiment.check({"batch": 2})
    with pytest.raises(UserError, match=rf"^BatchNorm needs two rows .* layer body\.\S+ \(BatchNorm.d\) of {name}$"):
        experiment.check({"batch": 1})


def test_a_batch_of_one_is_taken_where_it_can_be_trained_on(tmp_path: Path) -> None:
    for fields in ({"model": "fedgen-cnn"}, {"model": taken(tmp_path, "normed"), "body_lr_scale": 0.0}):
        Experiment(algorithm="fedavg", scenario=DIGITS.override(features=0, **fields)).check({"batch": 1})


def test_an_error_of_ours_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scores: Tensor, y: Tensor) -> Tensor:
        raise KeyError("odd")

    monkeypatch.setattr("fedtune.experiment.algorithm.cross_entropy", broken)
    for executor in ("stack", "loop"):
        scenario = DIGITS.override(clients=3)
        with pytest.raises(KeyError, match="odd"):
            Simulation(
                Experiment(algorithm="fedavg", scenario=scenario, executor=executor), {}, random_federation([5, 9, 2])
            ).step()


def test_a_net_of_ours_that_fails_inside_pytorch_names_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        architectures.BODIES, "cnn8", lambda shape, d: nn.Sequential(nn.Flatten(), nn.Linear(64, d), nn.BatchNorm1d(d))
    )
    scenario = DIGITS.override(clients=3, batch=1, model="cnn8")
    simulation = Simulation(Experiment(algorithm="fedavg", scenario=scenario), {}, random_federation([5, 9, 2]))
    with pytest.raises(UserError, match=r"^BatchNorm needs two rows .*; layer body.2 \(BatchNorm1d\)$"):
        simulation.step()
