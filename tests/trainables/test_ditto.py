"""Ditto: λ = 1 / η forgets what the own model was; a round by hand."""

from __future__ import annotations

import pytest
import torch
from support.by_hand import assert_own, common_model, distance, sgd_step, slope
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from torch import nn
from torch.testing import assert_close


def test_its_loss_is_that_of_both_models() -> None:
    data = random_federation([5, 9, 7])
    sims = [simulate(name, data=data, **c) for name, c in (("ditto", {"lam": 0.0}), ("fedavg", {}), ("local", {}))]
    for mine, common, own in zip(*(play(sim, 3) for sim in sims), strict=True):
        assert abs(mine["train_loss"] - common["train_loss"] - own["train_loss"]) < 1e-12


def test_three_rounds_by_hand() -> None:
    data = random_federation([6])
    sim = simulate("ditto", DIGITS, data, lam=0.6, lr=0.1, momentum=0.0, batch=6, local_steps=2)
    common, own, (x, y) = client_net(sim, 0), client_net(sim, 0), own_rows(sim, 0)
    for _ in range(3):  # with B = n each batch is all rows, in whatever order
        received = copied(common.state_dict())
        for net, lam in ((common, 0.0), (own, 0.6)):
            for _ in range(2):
                sgd_step(nn.functional.cross_entropy(net(x), y) + lam / 2 * distance(net, received), net, 0.1)
        play(sim, 1)
        assert_close_numbers(common_model(sim), common.state_dict())  # of one client: its own
        assert_own(sim, [own.state_dict()])


def test_a_step_under_a_pull_of_one_over_the_rate_starts_from_the_common_model() -> None:
    """v - η (g + λ (v - w)) = w - η g: whatever the own model was, it is w a step on."""
    sim = simulate("ditto", DIGITS, random_federation([6, 6]), lam=5.0, lr=0.2, momentum=0.0, batch=6, local_steps=1)
    play(sim, 2)
    received, nets = copied(common_model(sim)), [client_net(sim, k) for k in range(2)]
    slopes = [slope(net, dict(net.named_parameters()), *own_rows(sim, k)) for k, net in enumerate(nets)]
    play(sim, 1)
    assert_own(sim, [{n: received[n] - 0.2 * g for n, g in of.items()} for of in slopes])


@pytest.mark.parametrize("averaging", ["rows", "clients"])
def test_the_common_model_is_the_mean_by_rows_or_a_plain_one(averaging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("ditto", DIGITS, random_federation([5, 9, 7]), averaging=averaging, lr=0.1)
    seen = record_uploads(sim, monkeypatch)
    play(sim, 1)
    weights = torch.tensor([5.0, 9.0, 7.0] if averaging == "rows" else [1.0, 1.0, 1.0], dtype=torch.float64)
    for name, t in sim.state.server["shared"].items():
        want = torch.einsum("m,m...->...", weights / weights.sum(), seen[0]["shared"][name])
        assert_close(t, want, **TIGHT)
