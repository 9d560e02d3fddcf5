"""FedPHP: rounds by hand, MMD and its kernels by loops; what a private model keeps."""

import math

import pytest
import torch
from support.by_hand import sgd_step
from support.helpers import BATCHNORM, DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, copied, randn
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.nn.divergences import mmd
from fedtune.trainables.fedphp import widths

MU, LAM = 0.8, 0.3


def test_a_model_that_keeps_nothing_is_what_the_client_last_trained() -> None:
    """With one client that is FedAvg's, and so is its score."""
    data = random_federation([9])
    php, avg = simulate("fedphp", BATCHNORM, data, lam=0.0, mu=0.0), simulate("fedavg", BATCHNORM, data)
    rows, wanted = play(php, 3), play(avg, 3)
    for n, t in php.state.groups[0].kept["model"].items():
        assert_close(t[0], avg.state.server["shared"][n], **TIGHT)
    assert [r["test_acc"] for r in rows] == [r["test_acc"] for r in wanted]


def features_apart(z: Tensor, fixed: Tensor) -> Tensor:
    """MMD² by loops; exp(-|a - b|² / band) over bands of the mean squared distance, times 1/4 to 4."""
    rows = [*z.detach(), *fixed]
    n = len(rows)
    band = sum((a - b).square().sum().item() for a in rows for b in rows) / (n * n - n) + 1e-8

    def mean(xs: list[Tensor], ys: list[Tensor]) -> Tensor:
        each = [(-(a - b).square().sum() / (band * f)).exp() for a in xs for b in ys for f in (0.25, 0.5, 1, 2, 4)]
        return torch.stack(each).sum() / (len(xs) * len(ys))

    x, y = [*z], [*fixed]
    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def logits_apart(logits: Tensor, fixed: Tensor) -> Tensor:
    p = (fixed / 4).softmax(1)
    return (p * (p.log() - logits.log_softmax(1))).sum(1).mean()


def test_mmd_with_these_kernels_by_loops() -> None:
    x, y = randn(5, 6), randn(5, 6, seed=1)
    assert_close(mmd(x, y, widths(x, y)), features_apart(x, y), **TIGHT)


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize("transfer", ["features", "logits"])
def test_four_rounds_by_hand(transfer: str, executor: str) -> None:
    sim = simulate(
        "fedphp", DIGITS.override(rounds=4), random_federation([6]), executor=executor, mu=MU, lam=LAM,
        transfer=transfer, lr=0.1, momentum=0.0, batch=6, local_steps=2,
    )  # fmt: skip
    net, private, (x, y) = client_net(sim, 0), client_net(sim, 0), own_rows(sim, 0)
    for t in range(4):
        for _ in range(2):  # with B = n each batch is all rows, in whatever order
            z = net.body(x)
            loss = nn.functional.cross_entropy(net.head(z), y)
            if t:
                fixed = private.body(x).detach()
                apart = (
                    features_apart(z, fixed)
                    if transfer == "features"
                    else logits_apart(net.head(z), private.head(fixed).detach())
                )
                loss = (1 - LAM) * loss + LAM * apart
            sgd_step(loss, net, 0.1)
        mu = MU * min(1, t / 4)  # of 4 rounds, all with this client
        private.load_state_dict({n: mu * p + (1 - mu) * net.state_dict()[n] for n, p in private.state_dict().items()})
        play(sim, 1)
        assert_close_numbers(sim.state.server["shared"], net.state_dict())
        for n, p in private.state_dict().items():
            assert_close(sim.state.groups[0].kept["model"][n][0], p, **TIGHT)


def test_who_takes_part_in_half_of_the_rounds_keeps_as_much_after_half_as_many() -> None:
    scenario = DIGITS.override(rounds=8, participation=0.5)
    sim = simulate("fedphp", scenario, random_federation([6, 6]), mu=MU)
    assert_close(sim.state.groups[0].kept["share"], torch.full((2,), 1 / 4, dtype=torch.float64))
    before = copied(sim.state.groups[0].kept["model"])
    play(sim, 1)
    after = sim.state.groups[0].kept
    assert sorted(after["rounds"].tolist()) == [0, 1]
    out = int(after["rounds"].argmin())
    assert all(torch.equal(t[out], before[n][out]) for n, t in after["model"].items())


def test_a_client_without_a_private_model_predicts_with_the_received_one() -> None:
    scenario = DIGITS.override(participation=0.5)
    row = play(simulate("fedphp", scenario, random_federation([6, 6], other=20), lr=0.2), 1)[-1]
    assert 0 < row["test_acc"] <= 1 and math.isfinite(row["test_acc_received"])
