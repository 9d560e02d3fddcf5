"""PyTorch's own random functions in client code: addressed like every draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.helpers import DIGITS, assert_close_rows, assert_same_numbers, numbers, play, random_federation, simulate
from support.rows import first
from support.user_algorithms import known_as, own_net
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import draws as served
from fedtune.core import randomness
from fedtune.core.draws import Draws
from fedtune.core.errors import UserError
from fedtune.engine import chunks
from fedtune.experiment.algorithm import UP, Algorithm, Batch, Data, Model, Phase, Step, Task

DATA = random_federation([5, 9, 2, 7])
KEPT = {"rtol": 0, "atol": 1e-10}


@dataclass(frozen=True)
class Gambler(Algorithm):
    """Draws wherever client code can: in the pool, both steps, the upload, the memory and the prediction."""

    shared = ("head",)

    def keep(self, task: Task) -> dict:
        return {"luck": torch.zeros(3)}

    def init(self, task: Task) -> dict:
        return {"told": torch.zeros(2)}

    def round(self, task: Task) -> tuple:
        made = Phase(self.loss, pool=self.pool, after=Step(self.again, ("head",), "adam", 0.01), epochs=2)
        return ("down", made, Phase(self.loss, train=("head",)), UP)

    def pool(self, down: dict, eps: dict) -> Data:
        x = torch.randn(6, 1, 8, 8, dtype=torch.float64) + down["shared"]["head.bias"].sum()
        return Data(x, torch.randint(4, (6,)), torch.ones(6, dtype=torch.bool), {})

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        z = m.body(batch.x)
        return F.cross_entropy(m.head(F.dropout(z, 0.4)), batch.y) + 0.1 * (torch.rand_like(z) * z).mean()

    def again(self, m: Model, batch: Batch, down: dict) -> Tensor:
        return (m["head.weight"] * torch.empty_like(m["head.weight"]).normal_()).mean()

    def upload(self, m: Model, data: Data, down: dict) -> dict:
        return {"told": torch.normal(m["head.bias"].mean(), 1.0).expand(2) + torch.rand(2)}

    def remember(self, m: Model, data: Data, down: dict) -> dict:
        return {"luck": data.client.kept["luck"] + torch.empty_like(data.client.kept["luck"]).uniform_(1, 2)}

    def aggregate(self, server: dict, up: dict, task: Task) -> dict:
        return super().aggregate(server, up, task) | {"told": up["told"].sum(0)}

    def predict(self, m: Model, x: Tensor, down: dict) -> Tensor:
        return m.head(m.body(x)) + torch.randn(4, dtype=torch.float64)


CASES = first([("fedavg", "dropout"), ("gambler", ""), ("fedprox", "attention"), ("fedavg", "noisy")], 2)


@pytest.fixture(autouse=True)
def algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    known_as(monkeypatch, gambler=Gambler, fussy=Fussy, stubborn=Stubborn)


def sim_of(name: str, net: str, executor: str = "stack", **options: Any) -> Any:
    scenario = DIGITS.override(model=own_net(net), features=0) if net else DIGITS
    return simulate(name, scenario.override(participation=0.75), DATA, executor=executor, batch=4, **options)


def assert_nearly_the_same(got: Any, want: Any) -> None:
    a, b = numbers(got.state), numbers(want.state)
    assert a.keys() == b.keys()
    for name, t in b.items():
        assert_close(a[name], t, **KEPT, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("name", "net"), CASES)
def test_what_client_code_draws_is_the_same_stacked_looped_regrouped_and_resumed(
    name: str, net: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sim_of(name, net)
    chance = torch.get_rng_state()
    rows = play(whole, 3)
    assert torch.equal(chance, torch.get_rng_state())
    loop = sim_of(name, net, "loop")
    assert_close_rows(play(loop, 3), rows)
    assert_nearly_the_same(loop, whole)
    split = sim_of(name, net, groups=[[3, 1], [2], [0]])
    play(split, 3)
    assert_nearly_the_same(split, whole)
    for executor, want in (("stack", whole), ("loop", loop)):
        cut = sim_of(name, net, executor)
        play(cut, 1)
        cut.save(tmp_path / "state.pt")
        rest = sim_of(name, net, executor)
        rest.load(tmp_path / "state.pt")
        play(rest, 2)
        assert_same_numbers(numbers(rest.state), numbers(want.state))
    monkeypatch.setattr(chunks, "ROWS_AT_ONCE", 8)
    parts = sim_of(name, net)
    play(parts, 3)
    assert_nearly_the_same(parts, whole)


def test_another_seed_another_round_another_client_and_another_step_draw_others() -> None:
    a, b = sim_of("gambler", "", seed=1), sim_of("gambler", "", seed=2)
    play(a, 1), play(b, 1)
    luck = [sim.state.groups[0].kept["luck"] for sim in (a, b)]
    assert not torch.equal(*luck) and len(luck[0][luck[0].sum(1) > 0].unique(dim=0)) == 3
    before = luck[0].clone()
    play(a, 1)
    steps = (a.state.groups[0].kept["luck"] - before)[:, 0]
    assert len({*steps[steps > 0].tolist(), *before[:, 0][before[:, 0] > 0].tolist()}) == 6


def served_to(code: Any, x: Tensor, times: int = 1, stacked: bool = True) -> Tensor:
    """What code gives for each of x's clients, [times, K, …]."""
    draws, out = Draws(), []
    if stacked:
        draws.begin(lambda: [randomness.stream(7, k) for k in range(len(x))])
        return torch.stack([draws.stacked(code, len(x), x) for _ in range(times)])
    for k in range(len(x)):
        draws.begin(lambda k=k: [randomness.stream(7, k)])
        out.append(torch.stack([draws.alone(code, 0, x[k]) for _ in range(times)]))
    return torch.stack(out, 1)


BINARY = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)[:, None] / 3.75

DISTRIBUTIONS = {
    "dropout": (lambda t: F.dropout(torch.ones_like(t), 0.25), 1, (1 / 0.75 - 1) ** 0.5),
    "alpha_dropout": (lambda t: F.alpha_dropout(t * 0, 0.5, True), 0, None),
    "rand": (lambda t: torch.rand(4, 50) + 0 * t, 0.5, 12**-0.5),
    "randn_like": (torch.randn_like, 0, 1),
    "randint": (lambda t: torch.randint(3, 7, (4, 50)) + 0 * t, 4.5, 1.25**0.5),
    "bernoulli": (lambda t: torch.bernoulli(torch.full_like(t, 0.2)), 0.2, 0.4),
    "normal_": (lambda t: torch.empty_like(t).normal_(2, 3), 2, 3),
    "uniform_": (lambda t: torch.empty_like(t).uniform_(-1, 3), 1, 16**0.5 / 12**0.5),
    "exponential_": (lambda t: torch.empty_like(t).exponential_(2), 0.5, 0.5),
    "poisson": (lambda t: torch.poisson(torch.full_like(t, 4.0)), 4, 2),
    "gamma": (lambda t: torch.distributions.Gamma(torch.full_like(t, 4.0), 1.0).rsample(), 4, 2),
    "categorical": (
        lambda t: torch.distributions.Categorical(torch.ones_like(t[:, :, None].expand(4, 50, 2))).sample() + 0 * t,
        0.5, 0.5,
    ),
    "randperm": (lambda t: torch.randperm(50)[None, :] + 0 * t, 24.5, ((50**2 - 1) / 12) ** 0.5),
    "attention": (
        lambda t: F.scaled_dot_product_attention(t[None], t[None], t[None] + BINARY, dropout_p=0.5)[0],
        1, None,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_draws_follow_their_distribution_and_are_one_for_stack_and_loop(distribution: str) -> None:
    code, mean, spread = DISTRIBUTIONS[distribution]
    x = torch.zeros(3, 4, 50, dtype=torch.float64)
    stack, loop = (served_to(code, x, 40, stacked).double() for stacked in (True, False))
    assert torch.equal(stack, loop)
    assert_close(stack.mean().item(), float(mean), rtol=0, atol=0.1 * max(1, spread or 1))
    if spread:
        assert_close(stack.std().item(), float(spread), rtol=0.05, atol=0)
    assert len(stack.flatten(2).transpose(0, 1).flatten(0, 1).unique(dim=0)) == 120  # clients and steps differ


def test_a_mask_is_the_same_in_both_precisions_and_whatever_the_memory_order() -> None:
    x = torch.ones(2, 3, 4, 4)
    plain = served_to(lambda t: F.dropout(t, 0.5), x)
    assert torch.equal(plain > 0, served_to(lambda t: F.dropout(t, 0.5), x.double()) > 0)
    turned = x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    assert torch.equal(plain, served_to(lambda t: F.dropout(t, 0.5), turned))


def test_the_gradient_goes_through_the_mask() -> None:
    x = torch.ones(2, 50, requires_grad=True)
    y = served_to(lambda t: F.dropout(t, 0.5), x)
    y.sum().backward()
    assert torch.equal(x.grad, y[0].detach())


def test_code_that_draws_nothing_is_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    watched = Draws.__torch_dispatch__
    monkeypatch.setattr(
        Draws, "__torch_dispatch__", lambda self, func, *rest: (seen.append(func), watched(self, func, *rest))[1]
    )
    draws = Draws()
    x = torch.ones(2, 3)
    for _ in range(3):
        draws.stacked(lambda t: t * 2, 2, x)
    assert len(seen) == 1 and draws.is_random is False


class Fussy(Algorithm):
    """Brings a generator of its own."""

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        return super().loss(m, batch, down) + torch.rand((), generator=torch.Generator().manual_seed(1))


class Stubborn(Algorithm):
    """Calls what draws in its own way."""

    def loss(self, m: Model, batch: Batch, down: dict) -> Tensor:
        return F.cross_entropy(m.head(F.rrelu(m.body(batch.x), training=True)), batch.y)  # the line of rrelu


@pytest.mark.parametrize(
    ("name", "says"),
    [("fussy", "was given a generator"), ("stubborn", "rrelu_with_noise cannot draw from each client's own stream")],
)
def test_what_cannot_be_addressed_is_refused_with_its_place(name: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"must be repeatable, but at .*test_draws.py:\d+ .*{says}.*draw with") as told:
        play(sim_of(name, "", "loop"), 1)
    assert "\n" not in str(told.value)


def test_code_that_begins_to_draw_later_is_served_from_then_on() -> None:
    x, net = torch.ones(2, 3), torch.nn.Identity()
    moody = {"on": False}

    def code(t: Tensor) -> Tensor:
        return t + torch.rand(3) if moody["on"] else t

    wanted = served_to(lambda t: t + torch.rand(3), x)[0]
    for how in ("stack", "loop"):
        moody["on"], found = False, []
        for _ in range(2):
            draws = Draws(code, net if how == "stack" else torch.nn.Identity())
            for on in (False, True):
                moody["on"] = on

                def run(draws: Draws = draws, how: str = how) -> Tensor:
                    draws.begin(lambda: [randomness.stream(7, k) for k in range(2)])
                    if how == "stack":
                        return draws.stacked(code, 2, x)
                    return torch.stack([draws.alone(code, k, x[k]) for k in range(2)])

                found.append(served.certain(run, draws))
        assert torch.equal(found[0], x) and torch.equal(found[1], wanted) and torch.equal(found[3], wanted)
