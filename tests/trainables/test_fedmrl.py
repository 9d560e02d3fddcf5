"""FedMRL: Local where the projection lets own features through; rounds of two clients by hand; what is sent."""

from typing import Any

import pytest
import torch
from support.by_hand import rounds, sgd_step, whole_net
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers
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


@pytest.mark.parametrize(("weighing", "weights"), [("rows", [6, 18]), ("clients", [1, 1])])
def test_three_rounds_by_hand(weighing: str, weights: list[int]) -> None:
    m, rows = 0.6, [6, 18]
    sim = simulate(
        "fedmrl", DIGITS, random_federation(rows), coarse=m, weighing=weighing, lr=0.1, momentum=0.0, batch=18,
        local_steps=1, width=0.25,
    )  # fmt: skip
    nets = [whole_net(sim, k) for k in range(2)]
    assert nets[0].projection.weight.shape == (12, 15) and nets[0].small.head.weight.shape == (4, 3)

    def work(_t: int, k: int, net: nn.Module) -> None:  # a batch of 18 holds each of 6 rows three times
        x, y = own_rows(sim, k)
        r = torch.cat([net.small.body(x), net.body(x)], 1) @ net.projection.weight.T + net.projection.bias
        loss = nn.functional.cross_entropy(net.head(r), y)
        sgd_step(loss + m * nn.functional.cross_entropy(net.small.head(r[:, :3]), y), net, 0.1)

    for _ in rounds(sim, 3, work, nets, lambda n: n.startswith("small."), weights):
        pass
