"""FedDecorr: correlations are torch.corrcoef's; rounds by hand, as paper and code have them."""

import pytest
import torch
from support.by_hand import assert_means_of_steps
from support.helpers import DIGITS, random_federation, simulate
from support.numbers import TIGHT, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.trainables.feddecorr import correlations


def test_correlations_are_pearsons() -> None:
    z = 1e3 * randn(7, 5) @ randn(5, 5, seed=1)  # so large that 1e-8 in a variance is nothing
    assert_close(correlations(z), torch.corrcoef(z.T), **TIGHT)
    z[:, 2] = 3.0
    known = correlations(z)
    assert_close(known[2], torch.zeros(5, dtype=torch.float64), **TIGHT)
    others = torch.tensor([0, 1, 3, 4])
    assert_close(known[others][:, others], torch.corrcoef(z[:, others].T), **TIGHT)


def paper(z: Tensor) -> Tensor:
    """1/D² Σ over all pairs of features of their squared correlation, pair by pair."""
    rows, width = z.shape
    total = torch.zeros((), dtype=torch.float64)
    apart = z - z.mean(0)
    var = (apart**2).sum(0) / (rows - 1) + 1e-8
    for i in range(width):
        for j in range(width):
            total = total + (apart[:, i] @ apart[:, j] / (rows - 1)) ** 2 / (var[i] * var[j])
    return total / width**2


def code(z: Tensor) -> Tensor:
    """The mean over pairs of different features of (Σ_b ẑ_bi ẑ_bj)², by the rows B."""
    rows, width = z.shape
    unit = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()
    pairs = [(unit[:, i] @ unit[:, j]) ** 2 for i in range(width) for j in range(width) if i != j]
    return torch.stack(pairs).mean() / rows


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize(("scale", "penalty"), [("text", paper), ("code", code)])
def test_two_rounds_by_hand(scale: str, penalty, executor: str) -> None:
    eta, beta, rows = 0.05, 0.5, [4, 11]
    config = {"beta": beta, "scale": scale, "lr": eta, "momentum": 0.0, "batch": 5}
    sim = simulate("feddecorr", DIGITS, random_federation(rows), executor=executor, **config)

    def loss(_k, net, _received, x: Tensor, y: Tensor) -> Tensor:
        z = net.body(x)
        return nn.functional.cross_entropy(net.head(z), y) + beta * penalty(z)

    assert_means_of_steps(sim, 2, loss)
