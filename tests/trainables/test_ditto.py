"""Ditto: λ = 1 / η forgets what the own model was; a round by hand."""

from __future__ import annotations

import pytest
import torch
from support.by_hand import common_model, distance, sgd_step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, copied
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
        for name, t in common_model(sim).items():  # of one client: its own
            assert_close(t, common.state_dict()[name], **TIGHT)
        for name, t in own.state_dict().items():
            assert_close(sim.state.groups[0].tensors[name][0], t, **TIGHT)


def test_a_step_under_a_pull_of_one_over_the_rate_starts_from_the_common_model() -> None:
    """v - η (g + λ (v - w)) = w - η g: whatever the own model was, it is w a step on."""
    sim = simulate("ditto", DIGITS, random_federation([6, 6]), lam=5.0, lr=0.2, momentum=0.0, batch=6, local_steps=1)
    play(sim, 2)
    received, nets = copied(common_model(sim)), [client_net_own(sim, k) for k in range(2)]
    slopes = []
    for k, net in enumerate(nets):
        x, y = own_rows(sim, k)
        loss = nn.functional.cross_entropy(net(x), y)
        slopes.append(torch.autograd.grad(loss, list(net.parameters())))
    play(sim, 1)
    for k, net in enumerate(nets):
        for (name, _), g in zip(net.named_parameters(), slopes[k], strict=True):
            assert_close(sim.state.groups[0].tensors[name][k], received[name] - 0.2 * g, **TIGHT)


def client_net_own(sim, k: int) -> nn.Module:  # type: ignore[no-untyped-def]
    net = client_net(sim, k)
    net.load_state_dict({n: sim.state.groups[0].tensors[n][k].clone() for n in net.state_dict()})
    return net


@pytest.mark.parametrize("averaging", ["rows", "clients"])
def test_the_common_model_is_the_mean_by_rows_or_a_plain_one(averaging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulate("ditto", DIGITS, random_federation([5, 9, 7]), averaging=averaging, lr=0.1)
    seen = record_uploads(sim, monkeypatch)
    play(sim, 1)
    weights = torch.tensor([5.0, 9.0, 7.0] if averaging == "rows" else [1.0, 1.0, 1.0], dtype=torch.float64)
    for name, t in sim.state.server["shared"].items():
        want = torch.einsum("m,m...->...", weights / weights.sum(), seen[0]["shared"][name])
        assert_close(t, want, **TIGHT)
