"""What is declared pure is recorded, what is not runs eagerly, and what is declared and is not ends its trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.helpers import DIGITS, random_federation
from torch import nn

from fedtune import pure, tracing
from fedtune.conformance import exactness
from fedtune.conformance.check import Note, Violation
from fedtune.conformance.subject import Subject
from fedtune.core.errors import UserError
from fedtune.core.process import one_thread
from fedtune.core.trees import named
from fedtune.engine import stacked_code
from fedtune.engine.simulation import Simulation
from fedtune.experiment import registry
from fedtune.experiment.experiment import Experiment
from fedtune.nn.net import Net
from fedtune.tracing import calls, purity
from fedtune.user_code import user_files

DATA = random_federation([30] * 3)
SMALL = DIGITS.override(clients=3, local_steps=8, batch=4)
ALGORITHM = """
import math, time
from dataclasses import dataclass
import torch.nn.functional as F
from fedtune import Algorithm, hyper
from fedtune.experiment.algorithm import Phase
from fedtune.trainables.fedprox import FedProx

calls = iter(range(10**9))

@dataclass(frozen=True)
class Mine({base}):
    {says}
    shared = ("body", "head")

    def loss(self, m, batch, down):
        return F.cross_entropy(m.head(m.body(batch.x)), batch.y) * {factor}
"""
MODEL = """
import math
from torch import nn
import fedtune

class Half(nn.Module):
    def forward(self, x):
        return x / 2

{mark}
def net(shape, classes):
    made = nn.Module()
    made.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), {layer})
    made.head = nn.Linear(8, classes)
    return made
"""


@pytest.fixture(autouse=True)
def nothing_is_recorded() -> None:
    tracing.forget()


def algorithm(folder: Path, says: str = "pure = True", factor: str = "1", base: str = "Algorithm") -> str:
    (folder / "mine.py").write_text(ALGORITHM.format(says=says, factor=factor, base=base))
    return user_files.take(f"{folder}/mine.py:Mine")[0]


def model(folder: Path, layer: str = "nn.ReLU()", mark: str = "") -> str:
    (folder / "net.py").write_text(MODEL.format(layer=layer, mark=mark))
    return user_files.take(f"{folder}/net.py:net")[0]


def trained(name: str, model: str = "mlp", rounds: int = 3) -> Simulation:
    scenario = SMALL.override(model=model, features=0 if model != "mlp" else 12)
    simulation = Simulation(Experiment(algorithm=name, scenario=scenario, executor="stack"), {}, DATA)
    for _ in range(rounds):
        simulation.step()
    return simulation


def recorded(simulation: Simulation) -> bool:
    """Whether steps were replayed."""
    known = tracing.recordings_of(simulation.state.groups[0].net)
    return any(entry.verified for key, entry in known.items() if key[0] is stacked_code.StackedStep)


def why(simulation: Simulation) -> list[str]:
    return stacked_code.reasons(simulation.state.groups[0].net)


def require_equal(a: Simulation, b: Simulation) -> None:
    for n, t in named(a.state.server).items():
        assert torch.equal(t, named(b.state.server)[n]), n


def test_only_what_says_that_it_is_pure_is_recorded_and_no_bit_is_another(tmp_path: Path) -> None:
    declared = trained(algorithm(tmp_path, factor="(1 + math.pi)"))
    silent = trained(algorithm(tmp_path, "", factor="(1 + math.pi)"))
    assert recorded(declared) and not why(declared)
    assert not recorded(silent) and why(silent) == ["Mine does not say pure = True"]
    require_equal(declared, silent)


def test_a_subclass_of_a_pure_algorithm_says_it_for_itself(tmp_path: Path) -> None:
    assert not recorded(trained(algorithm(tmp_path, "", base="FedProx")))
    assert recorded(trained(algorithm(tmp_path, base="FedProx")))


@pytest.mark.parametrize(
    ("layer", "mark", "is_recorded"),
    [
        ("nn.LayerNorm(8)", "", True),
        ("nn.Dropout(0.0)", "", True),
        ("Half()", "", False),
        ("Half()", "@fedtune.pure", True),
    ],
)
def test_layers_of_torch_count_as_declared_and_others_by_their_models_function(
    layer: str, mark: str, is_recorded: bool, tmp_path: Path
) -> None:
    simulation = trained("fedavg", model(tmp_path, layer, mark))
    assert recorded(simulation) == is_recorded
    assert is_recorded or "layer body.2 (Half) is no plain layer of torch.nn's" in why(simulation)[0]
    with tracing.eager():
        require_equal(simulation, trained("fedavg", model(tmp_path, layer, mark)))


def test_the_environment_switches_recording_off(monkeypatch: pytest.MonkeyPatch) -> None:
    on = trained("fedprox")
    monkeypatch.setenv("FEDTUNE_EAGER", "1")
    off = trained("fedprox")
    assert recorded(on) and tracing.recordings_of(off.state.groups[0].net) == {}
    require_equal(on, off)


def test_declared_code_that_counts_ends_with_its_name_and_the_round(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^recorded steps of Mine on mlp gave other numbers than their code in round 1"):
        trained(algorithm(tmp_path, factor="(1 + next(calls) / 100)"))
    forward = "lambda s, x, n=iter(range(10**9)): x * (next(n) if s.training else 1)"
    layer = f"type('Counts', (nn.Module,), {{'forward': {forward}}})()"
    with pytest.raises(
        UserError, match="^recorded steps of FedAvg on net.py:net gave other numbers than their code in round 1"
    ):
        trained("fedavg", model(tmp_path, layer, "@fedtune.pure"))


def test_what_changes_long_after_it_was_recorded_is_found_at_a_later_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SHARE", 1.0)
    simulation = trained(algorithm(tmp_path, factor="(2 if next(calls) > 10**6 else 1)"), rounds=6)
    assert recorded(simulation)
    loss: Any = type(simulation.setup.algorithm).loss
    loss.__globals__["calls"] = iter(range(10**7, 10**8))
    with one_thread(), pytest.raises(UserError, match=r"gave other numbers than their code in round \d+"):
        for _ in range(80):
            simulation.step()


def test_check_compares_recorded_steps_with_the_code(tmp_path: Path) -> None:
    def found(*given: str) -> Any:
        return exactness.recorded_steps(Subject(cls=registry.find(algorithm(tmp_path, *given)), name="mine"))

    assert found() is None
    assert isinstance(found(""), Note) and "runs eagerly, as Mine does not say pure = True" in str(found(""))
    assert isinstance(found("pure = True", "(0.5 if next(calls) < 20 else 1)"), Violation)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "a forward of its own": lambda: with_(nn.Linear(2, 2), forward=lambda x: x),
    "a class of its own": lambda: type("Mine", (nn.Linear,), {})(2, 2),
    "a function of its own": lambda: nn.TransformerEncoderLayer(4, 1, activation=lambda x: x),
    "a parametrization": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
    "a bound on its rows": lambda: nn.Embedding(3, 2, max_norm=1.0),
    "a flattened weight": lambda: nn.LSTM(2, 2),
}
HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(lambda *_: None),
    "forward pre": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "backward": lambda m: m.register_full_backward_hook(lambda *_: None),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    "all modules": lambda _: nn.modules.module.register_module_forward_hook(lambda *_: None),
}


def with_(module: nn.Module, **attributes: Any) -> nn.Module:
    vars(module).update(attributes)
    return module


def loss_of_nothing(*_: Any) -> None:
    """A function of nothing."""


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_that_is_not_as_torch_makes_it_is_not_recorded(kind: str) -> None:
    assert not purity.is_functional(LAYERS[kind]())
    net = Net(LAYERS[kind](), nn.Linear(2, 2))
    assert "is no plain layer" in tracing.why_eager(pure(loss_of_nothing), net)
    plain = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 1)]
    layers = [*plain, nn.Embedding(3, 2), nn.Sequential(nn.Dropout(), nn.Softmax(1)), nn.ModuleList([nn.GELU()])]
    assert all(purity.is_functional(m) for layer in layers for m in layer.modules())


@pytest.mark.parametrize("kind", HOOKS)
def test_a_net_with_a_hook_is_not_recorded_even_if_it_is_declared(kind: str) -> None:
    net = Net(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    net.declared = ("body", "head")
    assert tracing.why_eager(pure(loss_of_nothing), net) == ""
    hook = HOOKS[kind](net.body[0])
    try:
        assert "has a hook" in tracing.why_eager(pure(loss_of_nothing), net)
    finally:
        hook.remove()
    assert tracing.why_eager(pure(loss_of_nothing), net) == ""
