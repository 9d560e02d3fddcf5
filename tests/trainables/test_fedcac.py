"""FedCAC: rounds by loops; what is sent."""

from itertools import permutations
from typing import Any

import pytest
import torch
from support.by_hand import mean_accuracy
from support.helpers import DIGITS, client_net, next_task, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT
from torch import Tensor
from torch.testing import assert_close

from fedtune.trainables.fedcac import FedCAC, critical


def test_critical_numbers_are_the_largest_products_that_moved() -> None:
    moved = torch.tensor([[0.3, -0.5, 0.0], [0.1, 0.0, -0.2]], dtype=torch.float64)
    assert critical(moved, 2).tolist() == [[True, True, False], [False, False, False]]
    assert critical(moved, 4).tolist() == [[True, True, False], [True, False, True]]
    assert critical(moved, 6).tolist() == critical(moved, 4).tolist()  # the others did not move
    assert not critical(moved, 0).any() and not critical(torch.zeros(3), 3).any()


def with_whom(masks: list[Tensor], t: int, beta: int) -> list[list[int]]:
    """The clients in each one's mean, pair by pair."""
    overlap = {}
    for i, j in permutations(range(len(masks)), 2):
        differ = int((masks[i] != masks[j]).sum())
        overlap[i, j] = 1 - differ / (2 * int(masks[i].sum()))
    values = list(overlap.values())
    mean = sum(values) / len(values)
    bound = mean + t / beta * (max(values) - mean)
    return [[j for j in range(len(masks)) if j == i or overlap[i, j] >= bound] for i in range(len(masks))]


@pytest.mark.parametrize("beta", [2, 50])
def test_rounds_by_loops(beta: int) -> None:
    rows = [5, 9, 7, 8]
    data = random_federation(rows, [[0, 1], [0, 1], [2, 3], [0, 2, 3]])
    sim = simulate("fedcac", DIGITS.override(participation=0.75), data, tau=0.4, together=beta, lr=0.1)
    seen, alg, had = record_uploads(sim), sim.setup.algorithm, {}
    sizes = set()
    for t in range(1, 5):
        before = alg.broadcast(sim.state.server, torch.arange(4), next_task(sim))["shared"]
        play(sim, 1)
        up, server = seen[t - 1], sim.state.server
        ids = up["ids"].tolist()
        masks = [torch.cat([m.present[i].flatten() for m in up["masks"].values()]) for i in range(len(ids))]
        for name, m in up["masks"].items():  # by sorting, of what the client moved away from what it had received
            for at, k in enumerate(ids):
                product = ((up["shared"][name][at] - before[name][k]) * up["shared"][name][at]).abs().flatten()
                number = int(0.4 * product.numel())
                largest = product.sort(descending=True).values[:number]
                bound = largest[-1] if largest[-1] > 1e-10 else product[product > 1e-20].min()
                assert torch.equal(m.present[at].flatten(), product >= bound)
        for at, friends in enumerate(with_whom(masks, t, beta)):
            sizes.add(len(friends))
            had[ids[at]] = {n: up["shared"][n][friends].mean(0) for n in up["masks"]}
        now = alg.broadcast(server, torch.arange(4), next_task(sim))["shared"]
        for name, t_ in server["shared"].items():
            weights = torch.tensor([rows[k] for k in ids], dtype=torch.float64).view(-1, *[1] * t_.ndim)
            assert_close(t_, (up["shared"][name] * weights).sum(0) / weights.sum(), **TIGHT)
            for k in range(4):
                want = torch.where(server["masks"][name][k], had[k][name], t_) if k in had else t_
                assert_close(now[name][k], want, **TIGHT)
    assert len(sizes) > 1  # somebody shared, and with some


def test_after_round_beta_nobody_shares() -> None:
    masks = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
    assert torch.equal(FedCAC(together=3).sharing(masks, 4), torch.eye(3, dtype=torch.float64))
    assert FedCAC(together=3).sharing(masks, 3)[0].tolist() == [0.5, 0.5, 0]


def test_a_client_is_scored_with_its_own_mixture() -> None:
    data = random_federation([12, 12], [[0, 1], [2, 3]], other=6)
    sim = simulate("fedcac", DIGITS, data, tau=0.3, lr=0.1)
    row, nets = play(sim, 3)[-1], [client_net(sim, k) for k in range(2)]
    sent = sim.setup.algorithm.broadcast(sim.state.server, torch.arange(2), next_task(sim))["shared"]
    for k, net in enumerate(nets):
        net.load_state_dict({n: t[k] for n, t in sent.items()})
    assert_close(row["test_acc"], mean_accuracy(sim, "test", lambda k, x: nets[k](x)), **TIGHT)


def test_a_bit_a_number_is_sent_up_besides_the_model() -> None:
    data = random_federation([5, 6])
    runs = {name: simulate(name, DIGITS, data) for name in ("fedcac", "fedavg")}
    rows: dict[str, Any] = {name: play(sim, 2)[-1] for name, sim in runs.items()}
    bits = sum(-(-t.numel() // 8) for t in runs["fedavg"].state.server["shared"].values())
    assert rows["fedcac"]["up_bytes"] == rows["fedavg"]["up_bytes"] + 2 * bits
    assert rows["fedcac"]["up_floats"] == rows["fedavg"]["up_floats"]
    assert rows["fedcac"]["down_bytes"] == rows["fedavg"]["down_bytes"]
