"""GPFL: rounds of two clients by hand; scores, and what is sent."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import mean_accuracy, sgd_step
from support.helpers import DIGITS, client_draws, play, random_federation, simulate
from support.numbers import TIGHT
from torch import Tensor, nn
from torch.testing import assert_close

LAM, MU = 0.3, 0.05


def modules(sim: Any, k: int) -> nn.ModuleDict:
    """All parts of client k as an ordinary module."""
    net = sim.state.groups[0].net
    parts = nn.ModuleDict({n: copy.deepcopy(part) for n, part in net.named_children()}).double()
    values = dict(sim.state.server["shared"]) | {n: t[k] for n, t in sim.state.groups[0].tensors.items()}
    parts.load_state_dict({n: values[n].clone() for n in parts.state_dict()})
    return parts


def through(parts: nn.ModuleDict, z: Tensor, condition: Tensor) -> Tensor:
    """The valve, row by row."""
    sides = []
    for name in ("scale", "shift"):
        linear, _, norm = parts["valve"][name]
        h = (linear.weight @ condition + linear.bias).clamp(min=0)
        h = (h - h.mean()) / (h.var(correction=0) + 1e-5).sqrt()
        sides.append(h * norm.weight + norm.bias)
    return torch.stack([(row + row * sides[0] + sides[1]).clamp(min=0) for row in z])


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str) -> None:
    rows, held = [4, 9], [[0, 0, 0, 1], [1, 2, 3]]
    config = {"lam": LAM, "mu": MU, "lr": 0.1, "momentum": 0.0, "executor": executor}
    sim = simulate("gpfl", DIGITS, random_federation(rows, held), **config)
    f, nets = sim.setup.federation, [modules(sim, k) for k in range(2)]
    shares = [torch.tensor([3.0, 1, 0, 0]).double() / 4, torch.tensor([0.0, 3, 3, 3]).double() / 9]
    for t in (1, 2, 3):
        for k, net in enumerate(nets):
            received = net["embedding"].weight.detach().clone()
            g, p = received.mean(0), shares[k] @ received
            for batch in client_draws(sim, t, k).rows[0]:
                z, y = net["body"](f.x[batch]), f.y[batch]
                generic, e = through(net, z, g), net["embedding"].weight
                cosine = torch.stack([F.cosine_similarity(generic, e[c][None]) for c in range(4)], 1)
                loss = F.cross_entropy(net["head"](through(net, z, p)), y) + F.cross_entropy(cosine, y)
                loss = loss + LAM * torch.linalg.vector_norm(generic - received[y])
                loss = loss + MU / 2 * sum((w**2).sum() for n in ("embedding", "valve") for w in net[n].parameters())
                sgd_step(loss, net, 0.1)
        ends = [net.state_dict() for net in nets]
        mean = {n: (4 * ends[0][n] + 9 * ends[1][n]) / 13 for n in ends[0] if not n.startswith("head")}
        for net in nets:
            net.load_state_dict(net.state_dict() | {n: v.clone() for n, v in mean.items()})
        play(sim, 1)
        for n, v in mean.items():
            assert_close(sim.state.server["shared"][n], v, **TIGHT)
        for k, net in enumerate(nets):
            assert_close(sim.state.groups[0].tensors["head.weight"][k], net["head"].weight.detach(), **TIGHT)
            assert_close(sim.state.groups[0].kept["share"][k], shares[k], **TIGHT)


def test_a_client_is_scored_with_its_head_on_personal_features() -> None:
    data = random_federation([12, 12], [[0, 1], [2, 3]], other=6)
    sim = simulate("gpfl", DIGITS, data, lr=0.1)
    row = play(sim, 3)[-1]

    def logits(k: int, x: Tensor) -> Tensor:
        net = modules(sim, k).eval()
        p = net["embedding"].weight[[[0, 1], [2, 3]][k]].mean(0)
        return net["head"](through(net, net["body"](x), p))

    assert_close(row["test_acc"], mean_accuracy(sim, "test", logits), **TIGHT)


def test_body_embeddings_and_valve_are_sent_and_the_head_is_not() -> None:
    sim = simulate("gpfl", DIGITS, random_federation([5, 6]))
    row, d = play(sim, 1)[-1], DIGITS.features
    body = sum(t.numel() for n, t in sim.state.server["shared"].items() if n.startswith("body"))
    assert row["up_floats"] == row["down_floats"] == 2 * (body + 4 * d + 2 * (d * d + 3 * d))
    assert {n.split(".")[0] for n in sim.state.server["shared"]} == {"body", "embedding", "valve"}
