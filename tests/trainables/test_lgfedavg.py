"""FedPer, LG-FedAvg and Local: what is everybody's, and what stays one's own."""

import numpy as np
import pytest
import torch
from support.by_hand import sgd_step
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, assert_same_numbers, numbers
from torch import nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.algorithm import Phase
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures

MIXED = Scenario(model="htmini3", features=12)


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


@pytest.mark.parametrize(("name", "shared"), [("fedper", "body"), ("lgfedavg", "head")])
def test_in_its_first_round_it_trains_as_fedavg_and_sends_one_part_alone(name: str, shared: str) -> None:
    data = random_federation([5, 9, 6])
    own, avg = (simulate(of, DIGITS, data) for of in (name, "fedavg"))
    row, _ = play(own, 1)[0], play(avg, 1)
    whole = avg.state.server["shared"]
    common = {n: t for n, t in whole.items() if n.startswith(shared)}
    assert_same_numbers(own.state.server["shared"], common)
    # FedAvg's other part is the mean, by rows, of what the clients kept
    for n, each in own.state.groups[0].tensors.items():
        assert n not in common and (each[0] != each[1]).any()
        assert_close(whole[n], torch.as_tensor(np.average(each.numpy(), axis=0, weights=[5, 9, 6])), **TIGHT)
    assert row["up_floats"] == row["down_floats"] == 3 * sum(t.numel() for t in common.values())
    assert row["up_ints"] == 3


def test_nothing_is_sent() -> None:
    sim = simulate("local")
    for row in play(sim, 2):
        assert {row[n] for n in row if n.startswith(("up_", "down_"))} == {0} and row["comm_mb"] == 0
    assert sim.state.server == {}
    actions = sim.setup.algorithm.round(sim.setup.task_in(1))
    assert len(actions) == 1 and isinstance(actions[0], Phase)


def test_other_clients_data_change_nothing() -> None:
    one, other = random_federation([7, 9, 5]), random_federation([7, 9, 5])
    for k in (1, 2):
        other.x[other.train.rows[k]] *= -3
    a, b = (simulate("local", DIGITS, data, executor="loop") for data in (one, other))
    play(a, 3), play(b, 3)
    mine = [{n: t for n, t in numbers(s.state).items() if n.startswith("client 0")} for s in (a, b)]
    assert_same_numbers(*mine)
    assert not torch.equal(numbers(a.state)["client 1/head.weight"], numbers(b.state)["client 1/head.weight"])
