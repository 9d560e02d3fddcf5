"""LG-FedAvg: the head is everybody's, the body one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.by_hand import sgd_step
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers
from torch import nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures

MIXED = Scenario(model="htmini3", features=12)


def test_in_its_first_round_it_trains_as_fedavg_and_averages_the_head_alone() -> None:
    data = random_federation([5, 9, 6])
    lg, avg = (simulate(name, DIGITS, data) for name in ("lgfedavg", "fedavg"))
    play(lg, 1), play(avg, 1)
    whole = avg.state.server["shared"]
    assert set(lg.state.server["shared"]) == {"head.weight", "head.bias"}
    assert_same_numbers(lg.state.server["shared"], {n: t for n, t in whole.items() if n.startswith("head")})
    # FedAvg's body is the mean, by rows, of the bodies that the clients kept
    for name, bodies in lg.state.groups[0].tensors.items():
        assert name.startswith("body") and (bodies[0] != bodies[1]).any()
        assert_close(whole[name], torch.as_tensor(np.average(bodies.numpy(), axis=0, weights=[5, 9, 6])), **TIGHT)


@pytest.mark.parametrize("scenario", [DIGITS, MIXED], ids=["one", "three architectures"])
def test_two_rounds_by_hand_whatever_the_architectures(scenario: Scenario) -> None:
    rows = [4, 8, 6]
    sim = simulate("lgfedavg", scenario, random_federation(rows), batch=24, lr=0.1, momentum=0.0)
    task = sim.setup.task
    nets = [
        architectures.build(task.models[k % len(task.models)], task.shape, 4, 12, randomness.number(0, "net")).double()
        for k in range(3)
    ]
    heads = [nets[0].head.weight, nets[0].head.bias]  # the first architecture's start is everybody's
    for _ in range(2):
        heads = [h.detach().clone() for h in heads]
        for k, net in enumerate(nets):  # a batch of 24 is each row 6, 3 and 4 times
            with torch.no_grad():
                net.head.weight.copy_(heads[0]), net.head.bias.copy_(heads[1])
            x, y = own_rows(sim, k)
            sgd_step(nn.functional.cross_entropy(net(x), y), net, 0.1)
        each = [[n.head.weight for n in nets], [n.head.bias for n in nets]]
        heads = [sum(n * p.detach() for n, p in zip(rows, ps, strict=True)) / 18 for ps in each]
    play(sim, 2)
    assert_close_numbers(sim.state.server["shared"], {"head.weight": heads[0], "head.bias": heads[1]})
    for group in sim.state.groups:
        for row, k in enumerate(group.ids.tolist()):
            own = {n: t[row] for n, t in group.tensors.items()}
            assert_close_numbers(own, {n: t for n, t in nets[k].state_dict().items() if n.startswith("body")})


def test_only_the_head_is_sent() -> None:
    row = play(simulate("lgfedavg", DIGITS, random_federation([5, 9, 6])), 1)[0]
    assert row["up_floats"] == row["down_floats"] == 3 * (12 + 1) * 4 and row["up_ints"] == 3
