"""Steps within steps: gradients of a model, several mini-batches a step, several steps a mini-batch; class counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from support.helpers import BATCHNORM, DIGITS, client_draws, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, randn
from support.user_algorithms import known_as
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core.errors import UserError
from fedtune.experiment.algorithm import Algorithm, Model, Phase, Step
from fedtune.experiment.model import gradient
from fedtune.nn.layers import cross_entropy


@dataclass(frozen=True)
class Plain(Algorithm):
    """FedAvg whose phase is given."""

    shared = ("body", "head")
    phase: ClassVar[dict] = {}

    def phases(self, task):
        return (Phase(self.loss, **self.phase),)


def test_a_models_gradient_is_autograds_and_leaves_running_statistics() -> None:
    sim = simulate("fedavg", BATCHNORM, random_federation([8]))
    net, (x, y) = client_net(sim, 0).train(), own_rows(sim, 0)
    tensors = {n: t.detach().clone() for n, t in net.state_dict().items()}
    names = [n for n, _ in net.named_parameters()]
    model = Model(net, {n: t.clone() for n, t in tensors.items()})
    got = model.gradient(lambda m: cross_entropy(m.head(m.body(x)), y), names)
    loss = nn.functional.cross_entropy(net(x), y)
    for n, g in zip(names, torch.autograd.grad(loss, list(net.parameters())), strict=True):
        assert_close(got[n], g, **TIGHT)
        assert not got[n].requires_grad
    assert all(torch.equal(model[n], t) for n, t in tensors.items())
    away = model.at({"head.bias": model["head.bias"] + 1})
    assert torch.equal(away["head.bias"], tensors["head.bias"] + 1) and torch.equal(
        model["head.bias"], tensors["head.bias"]
    )


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_step_has_as_many_mini_batches_as_its_phase_says(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    class Twice(Plain):
        phase: ClassVar[dict] = {"batches": 2}

    known_as(monkeypatch, twice=Twice)
    data, work = random_federation([12, 5]), {"executor": executor, "lr": 0.1}
    twice = simulate("twice", DIGITS, data, batch=3, **work)
    assert [client_draws(twice, 1, k).rows.shape for k in range(2)] == [(1, 2, 6), (1, 1, 6)]
    whole = simulate("fedavg", DIGITS, data, batch=6, **work)
    assert play(twice, 2) == play(whole, 2)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_repeated_steps_are_on_the_same_mini_batch_and_the_second_step_follows_the_last(
    monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    class Again(Plain):
        def body_loss(self, m, batch, down):
            return self.loss(m.at({n: m[n].detach() for n in ("head.weight", "head.bias")}), batch, down)

        def phases(self, task):
            return (Phase(self.body_loss, repeat=3, after=Step(self.loss, ("head",), "sgd", 0.5)),)

    known_as(monkeypatch, again=Again)
    sim = simulate("again", DIGITS, random_federation([7]), executor=executor, batch=3, lr=0.1, momentum=0.0)
    net, f = client_net(sim, 0), sim.setup.federation
    drawn = client_draws(sim, 1, 0)
    assert drawn.steps == [9] and torch.equal(drawn.rows[0], drawn.rows[0, ::3].repeat_interleave(3, 0))
    assert drawn.ends[0].tolist() == [False] * 8 + [True]
    for s, rows in enumerate(drawn.rows[0]):
        for part, lr in (("body", 0.1), ("head", 0.5))[: 2 if s % 3 == 2 else 1]:
            moving = list(net.get_submodule(part).parameters())
            grads = torch.autograd.grad(nn.functional.cross_entropy(net(f.x[rows]), f.y[rows]), moving)
            with torch.no_grad():
                for p, g in zip(moving, grads, strict=True):
                    p -= lr * g
    play(sim, 1)
    for n, t in net.state_dict().items():
        assert_close(sim.state.server["shared"][n], t, **TIGHT)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_client_knows_its_rows_of_each_class(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    class Counting(Plain):
        def loss(self, m, batch, down):
            return super().loss(m, batch, down) + 0 * m["head.bias"].sum(), {"counts": batch.client.counts}

        def upload(self, m, data, down):
            return {"told": data.client.counts, "seen": data.tally["counts"]}

        def init(self, task):
            return {"told": torch.zeros(3, 4, dtype=torch.int64), "seen": torch.zeros(3, 4, dtype=torch.int64)}

        def aggregate(self, server, up, task):
            return super().aggregate(server, up, task) | {n: up[n] for n in ("told", "seen")}

    known_as(monkeypatch, counting=Counting)
    sim = simulate("counting", DIGITS, random_federation([5, 9, 7], [[0, 1], [2], [1, 3]]), executor=executor, batch=3)
    play(sim, 1)
    want = [torch.bincount(own_rows(sim, k)[1], minlength=4).tolist() for k in range(3)]
    assert sim.state.server["told"].tolist() == want
    steps = torch.tensor([[2], [3], [3]])
    assert torch.equal(sim.state.server["seen"], torch.tensor(want) * steps)


@pytest.mark.parametrize("field", ["batches", "repeat"])
def test_a_phase_has_at_least_one_of_each(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    class Never(Plain):
        phase: ClassVar[dict] = {field: 0}

    known_as(monkeypatch, never=Never)
    with pytest.raises(UserError, match=f"phases whose {field} is a whole number from 1 on, but it is 0"):
        play(simulate("never", DIGITS, random_federation([5])), 1)


def test_a_gradient_is_torch_funcs_inside_vmap_and_outside_and_imports_no_compiler() -> None:
    a, b = randn(3, 4, seed=1).requires_grad_(), randn(3, 4, seed=2)

    def of(t: dict) -> Tensor:
        return (t["a"].sin() * t["a"].detach() + t["b"] ** 3).sum()

    for one in (lambda a, b: gradient(of, {"a": a, "b": b}), lambda a, b: torch.func.vmap(one_row)(a, b)):
        got = one(a, b)
        assert_close(got["a"], a.detach().cos() * a.detach(), **TIGHT)
        assert_close(got["b"], 3 * b**2, **TIGHT)
        assert not got["a"].requires_grad
    assert torch.equal(gradient(lambda t: torch.ones(()), {"a": a})["a"], torch.zeros_like(a))
    code = "import torch; from fedtune.experiment.model import gradient; import sys; w = torch.ones(2, 3)\n"
    code += "torch.func.vmap(lambda w: gradient(lambda t: t['w'].sum(), {'w': w}))(w)\n"
    code += "assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def one_row(a: Tensor, b: Tensor) -> dict[str, Tensor]:
    return gradient(lambda t: (t["a"].sin() * t["a"].detach() + t["b"] ** 3).sum(), {"a": a, "b": b})


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_a_phase_reads_all_rows_and_trains_on_some(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    class Reading(Plain):
        def even(self, places: Tensor) -> Tensor:
            return places % 2 == 0

        def keep(self, task):
            return {"times": torch.full((), 2.0)}

        def remember(self, m, data, down):
            return {"times": data.client.kept["times"] + 1}

        def mean(self, m, data, down):
            mean = (data.x.flatten(1).sum(1) * data.mask).sum() / data.mask.sum()
            return {"head.bias": mean * m.kept["times"] + data.client.counts + 0 * down["shared"]["head.bias"]}

        def phases(self, task):
            return (Phase(self.loss, ("body",), rows=self.even, read=self.mean),)

    known_as(monkeypatch, reading=Reading)
    data = random_federation([7, 4, 1], [[0, 1], [2], [3]])
    sim = simulate("reading", DIGITS.override(model="fedgen-cnn"), data, executor=executor, batch=4)
    assert [sorted({*client_draws(sim, 1, k).rows[0].flatten().tolist()}) for k in range(3)] == [
        [int(sim.setup.federation.train.rows[k, j]) for j in places]
        for k, places in enumerate([[0, 2, 4, 6], [0, 2], [0]])
    ]
    ups = []
    aggregate = Reading.aggregate
    monkeypatch.setattr(Reading, "aggregate", lambda a, s, up, task: ups.append(up) or aggregate(a, s, up, task))
    play(sim, 2)
    for t, up in enumerate(ups):
        for k in range(3):
            x, y = own_rows(sim, k)
            want = x.flatten(1).sum(1).mean() * (2 + t) + torch.bincount(y, minlength=4)
            assert_close(up["shared"]["head.bias"][k], want, rtol=0, atol=1e-10)
