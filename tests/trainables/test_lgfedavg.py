"""FedPer, LG-FedAvg and Local: what is everybody's, and what stays one's own."""

import numpy as np
import pytest
import torch
from support.by_hand import descend, rounds
from support.helpers import DIGITS, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_same_numbers, numbers
from torch import nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.scenario import Scenario
from fedtune.nn import architectures

MIXED = Scenario(model="htmini3", features=12)


@pytest.mark.parametrize("scenario", [DIGITS, MIXED], ids=["one", "three architectures"])
def test_two_rounds_by_hand_whatever_the_architectures(scenario: Scenario) -> None:
    sim = simulate("lgfedavg", scenario, random_federation([4, 8, 6]), batch=24, lr=0.1, momentum=0.0)
    task = sim.setup.task
    nets = [
        architectures.build(task.models[k % len(task.models)], task.shape, 4, 12, randomness.number(0, "net")).double()
        for k in range(3)
    ]
    for net in nets[1:]:
        net.head.load_state_dict(nets[0].head.state_dict())  # the first architecture's start is everybody's

    def work(_t: int, k: int, net: nn.Module) -> None:  # a batch of 24 is each row 6, 3 and 4 times
        descend(net, net, own_rows(sim, k), 1, 0.1)

    for _ in rounds(sim, 2, work, nets, shared=lambda n: n.startswith("head")):
        pass


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


def test_other_clients_data_change_nothing() -> None:
    one, other = random_federation([7, 9, 5]), random_federation([7, 9, 5])
    for k in (1, 2):
        other.x[other.train.rows[k]] *= -3
    a, b = (simulate("local", DIGITS, data, executor="loop") for data in (one, other))
    play(a, 3), play(b, 3)
    mine = [{n: t for n, t in numbers(s.state).items() if n.startswith("client 0")} for s in (a, b)]
    assert_same_numbers(*mine)
    assert not torch.equal(numbers(a.state)["client 1/head.weight"], numbers(b.state)["client 1/head.weight"])
