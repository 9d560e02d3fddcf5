"""FedNTD: its loss and a round by hand."""

import torch
from support.by_hand import assert_means_of_steps
from support.helpers import BATCHNORM, DIGITS, own_rows, random_federation, simulate
from support.numbers import TIGHT, randn
from torch import nn
from torch.testing import assert_close

from fedtune.experiment.algorithm import Batch, Model
from fedtune.trainables.fedntd import FedNTD

BETA, TAU = 0.7, 2.0


def by_hand(logits: torch.Tensor, teacher: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Row by row, the own class cut out: -Σ q̃_w ln(q̃ / q̃_w), times β τ²."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, other, own in zip(logits, teacher, y.tolist(), strict=True):
        rest = [c for c in range(len(row)) if c != own]
        q, p = (row[rest] / TAU).softmax(0), (other[rest] / TAU).softmax(0)
        total = total - (p * (q / p).log()).sum()
    return BETA * TAU**2 * total / len(y)


def test_the_loss_is_ce_and_the_divergence_of_what_is_left_without_the_own_class() -> None:
    sim = simulate("fedntd", BATCHNORM, random_federation([6]))
    net, shared = sim.state.groups[0].net, sim.state.server["shared"]
    moved = {
        n: t + 0.3 * randn(*t.shape, seed=i) if t.is_floating_point() else t for i, (n, t) in enumerate(shared.items())
    }
    x, y = own_rows(sim, 0)
    net.eval()
    model = Model(net, moved)
    got = FedNTD(beta=BETA, tau=TAU).loss(model, Batch(x, y, {}), {"shared": shared})
    logits, teacher = (of.head(of.body(x)) for of in (model, Model(net, shared)))
    assert_close(got, nn.functional.cross_entropy(logits, y) + by_hand(logits, teacher, y), **TIGHT)


def test_three_rounds_by_hand() -> None:
    sim = simulate(
        "fedntd", DIGITS, random_federation([6]), beta=BETA, tau=TAU, lr=0.1, momentum=0.0, batch=6, local_steps=3
    )

    def loss(_k, net, received, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = net(x)
        return nn.functional.cross_entropy(logits, y) + by_hand(logits, received(x).detach(), y)

    assert_means_of_steps(sim, 3, loss)
