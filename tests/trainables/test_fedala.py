"""FedALA: W and the mixture by hand, in the rounds that learn until it settles and in later ones."""

import pytest
import torch
from support.by_hand import assert_own, slope
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers
from torch import Tensor

from fedtune.trainables.fedala import FedALA


def test_the_highest_layers_are_those_next_to_the_head_and_the_head() -> None:
    names = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.running_mean", "head.weight", "head.bias"]
    assert FedALA(layers=1).higher(names) == ["head.bias", "head.weight"]
    assert FedALA(layers=2).higher(names) == ["body.1.weight", "head.bias", "head.weight"]
    assert FedALA(layers=0).higher([*names[4:], *names[:4]]) == sorted(n for n in names if "running" not in n)


@pytest.mark.parametrize("layers", [1, 0])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str, layers: int) -> None:
    """With B = n and s = 1 each batch is all rows, in whatever order."""
    lr, rate, passes = 0.2, 3.0, 4
    config = {"layers": layers, "weight_lr": rate, "passes": passes, "sampled": 1.0, "lr": lr, "momentum": 0.0}
    data = random_federation([6, 6])
    sim = simulate("fedala", DIGITS, data, executor=executor, batch=6, weight_decay=0.0, **config)
    net = client_net(sim, 0)
    server = {n: t.detach().clone() for n, t in net.named_parameters()}
    higher = [n for n in server if layers == 0 or n.startswith("head")]
    own, weights = [dict(server), dict(server)], [{n: torch.ones_like(server[n]) for n in higher} for _ in range(2)]
    for t in (1, 2, 3):
        for k in range(2):
            x, y = own_rows(sim, k)

            def mixed(server: dict[str, Tensor] = server, k: int = k) -> dict[str, Tensor]:
                return server | {n: own[k][n] + (server[n] - own[k][n]) * weights[k][n] for n in higher}

            for _ in range({1: 0, 2: passes, 3: 1}[t]):
                g = slope(net, mixed(), x, y)
                for n in higher:
                    weights[k][n] = (weights[k][n] - rate * g[n] * (server[n] - own[k][n])).clamp(0, 1)
            start = mixed()
            g = slope(net, start, x, y)
            own[k] = {n: start[n] - lr * g[n] for n in start}
        server = {n: (own[0][n] + own[1][n]) / 2 for n in server}
        play(sim, 1)
        assert_close_numbers(sim.state.server["shared"], server)
        learnt = [{f"weights.{i}": weights[k][n] for i, n in enumerate(sorted(higher))} for k in range(2)]
        assert_own(sim, [own[k] | learnt[k] for k in range(2)])
        assert sim.state.groups[0].kept["settled"].tolist() == [float(t > 1)] * 2
    assert all(((w >= 0) & (w <= 1)).all() for of in weights for w in of.values())
    assert any((w < 1).any() for of in weights for w in of.values())


def test_losses_that_are_alike_stop_the_learning_and_a_client_that_comes_later_learns_as_long() -> None:
    alg = FedALA(settled=0.1)
    kept = type("M", (), {"kept": {"settled": torch.zeros(())}})
    assert not alg.stops(torch.tensor([torch.nan, *[1.0] * 9]), kept) and alg.stops(torch.ones(10), kept)
    assert not alg.stops(torch.linspace(0, 1, 10), kept)
    kept.kept["settled"] = torch.ones(())
    assert alg.stops(torch.linspace(0, 1, 10), kept)
    sim = simulate("fedala", DIGITS.override(participation=0.4), random_federation([6] * 5), passes=3)
    came = [0] * 5
    for _ in range(4):
        before = {k: t.clone() for k, t in enumerate(sim.state.groups[0].tensors["head.weight"])}
        play(sim, 1)
        first = sim.state.round == 1
        for k, t in enumerate(sim.state.groups[0].tensors["head.weight"]):
            came[k] += 0 if torch.equal(t, before[k]) or first else 1
    assert sim.state.groups[0].kept["settled"].tolist() == [float(n > 0) for n in came]
