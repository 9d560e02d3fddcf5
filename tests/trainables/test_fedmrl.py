"""FedMRL: Local where the projection lets own features through; rounds of two clients by hand; what is sent."""

import copy
from typing import Any

import pytest
import torch
from support.by_hand import assert_own, sgd_step
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers, copied
from torch import nn

from fedtune.experiment.scenario import Scenario


def let_own_features_through(sim: Any) -> None:
    """P = [0, I], without an offset."""
    for name, t in sim.state.groups[0].tensors.items():
        if name == "projection.weight":
            t.zero_()
            t[:, :, -t.shape[1] :] = torch.eye(t.shape[1], dtype=t.dtype)
        elif name == "projection.bias":
            t.zero_()


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("model", ["mlp", "fedgen-cnn"])
def test_where_the_projection_lets_own_features_through_it_is_local(model: str, executor: str) -> None:
    scenario, data = Scenario(model=model, features=8, participation=0.7), random_federation([5, 9, 7])
    mrl = simulate("fedmrl", scenario, data, executor=executor, coarse=0.0, projection_rate=0.0)
    let_own_features_through(mrl)
    alone = simulate("local", scenario, data, executor=executor)
    rows, wanted = play(mrl, 3), play(alone, 3)
    own = {n: t for n, t in mrl.state.groups[0].tensors.items() if n.startswith(("body", "head"))}
    assert_close_numbers(own, alone.state.groups[0].tensors)
    assert [r["test_acc"] for r in rows] == [r["test_acc"] for r in wanted]


def net_of(sim: Any, k: int) -> nn.ModuleDict:
    """Client k's whole net as an ordinary module: own parts, small ones, projection."""
    net, values = sim.state.groups[0].net, dict(sim.state.server["shared"])
    parts = nn.ModuleDict({n: net.get_submodule(n) for n in ("body", "head", "small", "projection")})
    values |= {n: t[k] for n, t in sim.state.groups[0].tensors.items()}
    parts = copy.deepcopy(parts).double()
    parts.load_state_dict({n: t.clone() for n, t in values.items()})
    return parts


@pytest.mark.parametrize(("weighing", "weights"), [("rows", [6, 18]), ("clients", [1, 1])])
def test_three_rounds_by_hand(weighing: str, weights: list[int]) -> None:
    m, rows = 0.6, [6, 18]
    sim = simulate(
        "fedmrl", DIGITS, random_federation(rows), coarse=m, weighing=weighing, lr=0.1, momentum=0.0, batch=18,
        local_steps=1, width=0.25,
    )  # fmt: skip
    nets = [net_of(sim, k) for k in range(2)]
    assert nets[0]["projection"].weight.shape == (12, 15) and nets[0]["small"].head.weight.shape == (4, 3)
    for _ in range(3):
        for k, net in enumerate(nets):  # a batch of 18 holds each of 6 rows three times
            x, y = own_rows(sim, k)
            joined = torch.cat([net["small"].body(x), net["body"](x)], 1)
            r = joined @ net["projection"].weight.T + net["projection"].bias
            loss = nn.functional.cross_entropy(net["head"](r), y)
            loss = loss + m * nn.functional.cross_entropy(net["small"].head(r[:, :3]), y)
            sgd_step(loss, net, 0.1)
        mean = {
            n: sum(w * net["small"].state_dict()[n] for w, net in zip(weights, nets, strict=True)) / sum(weights)
            for n in nets[0]["small"].state_dict()
        }
        for net in nets:
            net["small"].load_state_dict(copied(mean))
        play(sim, 1)
        assert_close_numbers(sim.state.server["shared"], {f"small.{n}": t for n, t in mean.items()})
        assert_own(sim, [net.state_dict() for net in nets])


def test_only_the_small_net_is_sent_and_a_narrower_one_costs_less() -> None:
    sizes = {}
    for width in (0.25, 0.5):
        sim = simulate("fedmrl", DIGITS, random_federation([6, 8]), width=width)
        row = play(sim, 1)[-1]
        numbers = sum(t.numel() for t in sim.state.server["shared"].values())
        assert row["up_floats"] == row["down_floats"] == 2 * numbers
        assert all(n.startswith("small.") for n in sim.state.server["shared"])
        sizes[width] = numbers
    assert sizes[0.25] < sizes[0.5]
