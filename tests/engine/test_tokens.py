"""Rows that are whole numbers, and parameters of dimension 0: from the data to the table of an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.helpers import DIGITS, client_draws, play, random_federation, simulate
from support.numbers import assert_close_numbers, assert_close_rows, assert_same_numbers, numbers
from support.rows import first
from support.user_algorithms import known_as, own_net
from torch import Tensor
from torch.testing import assert_close

from fedtune.data.federation import Federation
from fedtune.engine import engine
from fedtune.experiment.algorithm import Algorithm, Batch, Data, Model, Noise, Task

SOME = ["scaffold", "fedproto", "moon", "fedavg", "fedprox", "fesem", "gfpl", "feddyn"]


def tokens() -> Federation:
    """Sequences of 7 tokens below 11, larger ones for larger classes."""
    data = random_federation([5, 9, 2])
    return data._replace(x=np.random.default_rng(3).integers(0, 8, (len(data.y), 7)) + data.y[:, None])


def sim_of(name: str, executor: str = "stack", **options: Any) -> Any:
    scenario = DIGITS.override(model=own_net("tokens"), features=0, participation=0.7)
    return simulate(name, scenario, tokens(), executor=executor, **options)


@dataclass(frozen=True)
class Typed(Algorithm):
    """Asks for noise and checks what it is given."""

    shared = ("body", "head")

    def phases(self, task: Task) -> tuple:
        (phase,) = super().phases(task)
        return (phase._replace(noise={"n": Noise((2,))}),)

    def keep(self, task: Task) -> dict:
        return {"scale": torch.zeros(task.shapes["body.scale"])}

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        assert batch.x.dtype == batch.y.dtype == torch.int64
        assert batch.eps["n"].dtype == batch.client.lr.dtype == m["head.bias"].dtype == torch.float64
        return super().loss(m, batch, down) + 0 * batch.eps["n"].sum()

    def upload_noise(self, task: Task) -> dict:
        return {"n": Noise(())}

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        assert data.x.dtype == torch.int64 and data.eps["n"].dtype == torch.float64
        return {}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        return {"scale": m["body.scale"]}


@pytest.mark.parametrize(
    ("name", "config"),
    first(
        [("typed", {"optimizer": "adam"}), *((n, {}) for n in SOME), ("typed", {}), ("typed", {"weight_decay": 0.01})],
        4,
    ),
)
def test_stack_equals_loop_and_a_resume_on_tokens(
    name: str, config: dict, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_as(monkeypatch, typed=Typed)
    stack, loop = sim_of(name, **config), sim_of(name, "loop", **config)
    assert stack.setup.federation.x.dtype == torch.int64
    rows = play(stack, 2)
    assert_close_rows(play(loop, 2), rows)
    assert_close_numbers(numbers(loop.state), numbers(stack.state))
    assert not any(t.dtype == torch.float32 for t in numbers(stack.state).values())
    cut = sim_of(name, **config)
    play(cut, 1)
    cut.save(tmp_path / "state.pt")
    rest = sim_of(name, **config)
    rest.load(tmp_path / "state.pt")
    assert play(rest, 1) == rows[1:]
    assert_same_numbers(numbers(rest.state), numbers(stack.state))


def test_an_embedding_and_a_scalar_learn_as_in_plain_pytorch() -> None:
    sim = sim_of("local", lr=0.1)
    trained = engine.participants(sim.setup, 1).tolist()[0]
    (draws,) = client_draws(sim, 1, trained).rows
    x, y = sim.setup.federation.x, sim.setup.federation.y
    leaves = {n: t[trained].clone().requires_grad_() for n, t in sim.state.groups[0].tensors.items()}
    optimizer = torch.optim.SGD(leaves.values(), lr=0.1, momentum=0.5)
    for index in draws:
        optimizer.zero_grad()
        z = leaves["body.scale"] * F.embedding(x[index], leaves["body.table.weight"], padding_idx=0).mean(1)
        F.cross_entropy(F.linear(z, leaves["head.weight"], leaves["head.bias"]), y[index]).backward()
        optimizer.step()
    play(sim, 1)
    took = sim.state.groups[0].tensors
    for n, t in leaves.items():
        assert_close(took[n][trained], t.detach(), rtol=0, atol=1e-12)
    assert took["body.scale"].shape == (3,)
