"""FedLC: rounds by hand; classes that a client lacks are left alone."""

import pytest
import torch
from support.by_hand import assert_means_of_steps
from support.helpers import DIGITS, play, random_federation, simulate
from support.numbers import copied
from torch import Tensor, nn

TAU = 0.8


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str) -> None:
    """Rows 5 and 1 of two of four classes; and 3 of three: over the classes held, exp(l_c - τ / n_c^(1/4))."""
    rows, held = [6, 9], [{0: 5, 1: 1}, {1: 3, 2: 3, 3: 3}]
    data = random_federation(rows, [[0, 0, 0, 0, 0, 1], [1, 2, 3]])
    sim = simulate("fedlc", DIGITS, data, executor=executor, tau=TAU, lr=0.1, momentum=0.0, batch=18, local_steps=2)

    def loss(k: int, net: nn.Module, _received: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert {c: int((y == c).sum()) * rows[k] // 18 for c in y.unique().tolist()} == held[
            k
        ]  # each row equally often
        total = torch.zeros((), dtype=torch.float64)
        for row, own in zip(net(x), y.tolist(), strict=True):
            parts = {c: (row[c] - TAU / n**0.25).exp() for c, n in held[k].items()}
            total = total - (parts[own] / sum(parts.values())).log()
        return total / len(y)

    assert_means_of_steps(sim, 3, loss)


def test_nothing_pushes_a_class_down_that_the_client_does_not_hold() -> None:
    """Its row of the head stays as it was, where FedAvg's moves."""
    data = random_federation([8], [[0, 1, 3]])
    moved = {}
    for name in ("fedlc", "fedavg"):
        sim = simulate(name, DIGITS, data, lr=0.2, local_epochs=3)
        start = copied(sim.state.server["shared"])
        play(sim, 2)
        for n in ("weight", "bias"):
            moved[name, n] = (sim.state.server["shared"][f"head.{n}"] - start[f"head.{n}"])[2].abs().max().item()
    assert moved["fedlc", "weight"] == moved["fedlc", "bias"] == 0
    assert moved["fedavg", "weight"] > 1e-3 < moved["fedavg", "bias"]
