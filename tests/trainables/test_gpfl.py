"""GPFL: rounds of two clients by hand; scores, and what is sent."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import batches, mean_accuracy, rounds, sgd_step, whole_net
from support.helpers import DIGITS, play, random_federation, simulate
from support.numbers import TIGHT
from torch import Tensor
from torch.testing import assert_close

LAM, MU = 0.3, 0.05


def through(net: Any, z: Tensor, condition: Tensor) -> Tensor:
    """The valve, row by row."""
    sides = []
    for name in ("scale", "shift"):
        linear, _, norm = net.valve[name]
        h = (linear.weight @ condition + linear.bias).clamp(min=0)
        h = (h - h.mean()) / (h.var(correction=0) + 1e-5).sqrt()
        sides.append(h * norm.weight + norm.bias)
    return torch.stack([(row + row * sides[0] + sides[1]).clamp(min=0) for row in z])


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str) -> None:
    rows, held = [4, 9], [[0, 0, 0, 1], [1, 2, 3]]
    config = {"lam": LAM, "mu": MU, "lr": 0.1, "momentum": 0.0, "executor": executor}
    sim = simulate("gpfl", DIGITS, random_federation(rows, held), **config)
    shares = [torch.tensor([3.0, 1, 0, 0]).double() / 4, torch.tensor([0.0, 3, 3, 3]).double() / 9]

    def work(t: int, k: int, net: Any) -> None:
        received = net.embedding.weight.detach().clone()
        g, p = received.mean(0), shares[k] @ received
        for x, y in batches(sim, t, k):
            z, e = net.body(x), net.embedding.weight
            generic = through(net, z, g)
            cosine = torch.stack([F.cosine_similarity(generic, e[c][None]) for c in range(4)], 1)
            loss = F.cross_entropy(net.head(through(net, z, p)), y) + F.cross_entropy(cosine, y)
            loss = loss + LAM * torch.linalg.vector_norm(generic - received[y])
            loss = loss + MU / 2 * sum((w**2).sum() for part in (net.embedding, net.valve) for w in part.parameters())
            sgd_step(loss, net, 0.1)

    for _ in rounds(sim, 3, work, [whole_net(sim, k) for k in range(2)], lambda n: not n.startswith("head")):
        for k in range(2):
            assert_close(sim.state.groups[0].kept["share"][k], shares[k], **TIGHT)


def test_a_client_is_scored_with_its_head_on_personal_features() -> None:
    data = random_federation([12, 12], [[0, 1], [2, 3]], other=6)
    sim = simulate("gpfl", DIGITS, data, lr=0.1)
    row = play(sim, 3)[-1]

    def logits(k: int, x: Tensor) -> Tensor:
        net = whole_net(sim, k).eval()
        p = net.embedding.weight[[[0, 1], [2, 3]][k]].mean(0)
        return net.head(through(net, net.body(x), p))

    assert_close(row["test_acc"], mean_accuracy(sim, "test", logits), **TIGHT)
