"""FedHKD: the loss, what is told with how much noise, and the means, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import first_client, softmax
from support.helpers import (
    DIGITS,
    client_net,
    own_rows,
    play,
    random_federation,
    record_uploads,
    simulate,
)
from support.numbers import TIGHT, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.algorithm import Batch, Data, Model, Ragged, Task, draw
from fedtune.trainables.fedavg import FedAvg
from fedtune.trainables.fedhkd import FedHKD

C, D = 4, 12
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
SEEN = torch.tensor([True, False, True, True])


def knowledge() -> dict[str, Ragged]:
    """Of three classes; what is absent is far off, so that reading it would show."""
    features, soft = torch.where(SEEN[:, None], randn(C, D, seed=9), 1e3), randn(C, C, seed=8).softmax(1)
    return {"features": Ragged(features, SEEN), "soft": Ragged(torch.where(SEEN[:, None], soft, 7.0), SEEN)}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("soft", ["mse", "kl"])
def test_the_loss_by_hand(soft: str, temperature: float) -> None:
    m, x, y = first_client(simulate("fedhkd", DIGITS, random_federation([9])))
    down, z = knowledge(), m.body(x).numpy()
    w, b = m["head.weight"].numpy(), m["head.bias"].numpy()
    ce = np.mean([np.log(np.exp(r).sum()) - r[c] for r, c in zip(z @ w.T + b, y.tolist(), strict=True)])
    agree, pull = 0.0, 0.0
    for c in range(C):
        if SEEN[c]:
            logits, target = w @ down["features"].values[c].numpy() + b, down["soft"].values[c].numpy()
            q = softmax(logits / temperature)
            agree += ((q - target) ** 2).sum() / C if soft == "mse" else (target * np.log(target / q)).sum()
    for row, c in zip(z, y.tolist(), strict=True):
        if SEEN[c]:
            pull += ((row - down["features"].values[c].numpy()) ** 2).sum() / D
    assert not SEEN[y].all()
    alg = FedHKD(lam=3.0, gamma=2.0, temperature=temperature, soft=soft)
    got = alg.loss(m, Batch(x, y, {}), down)
    assert_close(got.item(), float(ce + 3 * agree / C + 2 * pull / 9), **TIGHT)


def test_agreement_moves_the_head_alone_and_a_prediction_of_zero_adds_nothing() -> None:
    m, x, y = first_client(simulate("fedhkd", DIGITS, random_federation([9])))
    down = knowledge()
    sharp = torch.eye(C, dtype=torch.float64)  # ln 0 must not come up
    down["soft"] = Ragged(sharp, SEEN)
    leaves = {n: t.clone().requires_grad_() for n, t in m.tensors.items()}
    mine, batch = Model(m.net, leaves), Batch(x, y, {})
    extra = FedHKD(lam=3.0, gamma=0.0, soft="kl").loss(mine, batch, down) - FedAvg().loss(mine, batch, {})
    logits = (down["features"].values @ m["head.weight"].T + m["head.bias"]) / 0.5
    want = 3 * F.cross_entropy(logits, torch.arange(C), reduction="none")[SEEN].sum() / C
    assert_close(extra.detach(), want, **TIGHT)
    grads = dict(zip(leaves, torch.autograd.grad(extra, list(leaves.values())), strict=True))
    assert all((g == 0).all() == n.startswith("body") for n, g in grads.items())


# ----------------------------------------------------------------------------------------------- what is told


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_what_is_told_is_the_mean_plus_sigma_times_the_clients_own_noise(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, found = random_federation([8, 6, 9]), {}
    for sigma in (0.0, 2.0):
        sim = simulate("fedhkd", DIGITS, data, executor=executor, noise=sigma, least_share=0.0)
        seen = record_uploads(sim, monkeypatch)
        play(sim, 1)
        monkeypatch.undo()
        found[sigma] = seen[0]
    wanted = sim.setup.algorithm.upload_noise(sim.setup.task)
    for k in range(3):
        eps = draw(wanted, randomness.stream(0, "upload", 1, k), (), torch.float64)["noise"]
        assert eps.shape == (C, D)
        clean, noisy = (found[s]["features"].values[k] for s in (0.0, 2.0))
        assert torch.equal(noisy, clean + 2 * eps)
        net, (x, y) = client_net(sim, k).eval(), own_rows(sim, k)
        net.load_state_dict({n: t[k] for n, t in found[0.0]["shared"].items()})
        z = net.body(x).detach().numpy()
        q = softmax((z @ net.head.weight.detach().numpy().T + net.head.bias.detach().numpy()) / 0.5)
        for c in range(C):
            mine = y.numpy() == c
            assert_close(clean[c].numpy(), z[mine].mean(0), **TIGHT)
            for s in (0.0, 2.0):  # only features are noisy
                assert_close(found[s]["soft"].values[k, c].numpy(), q[mine].mean(0), **TIGHT)
        assert found[2.0]["counts"].values[k].tolist() == np.bincount(y.numpy(), minlength=C).tolist()
    assert not torch.equal(*(found[2.0]["features"].values[k] - found[0.0]["features"].values[k] for k in (0, 1)))


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.0, [1, 1, 1, 0]), (0.1, [1, 1, 1, 0]), (0.11, [0, 1, 1, 0]), (0.3, [0, 1, 1, 0]), (0.31, [0, 0, 1, 0])],
)
def test_a_class_is_told_from_a_share_of_the_rows_on(share: float, told: list[int]) -> None:
    m, x, _ = first_client(simulate("fedhkd", DIGITS, random_federation([9])))
    x = torch.cat([x, x])[:12]
    y, mask = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3]), torch.arange(12) < 10  # 1, 3, 6, 0 of 10 rows
    up = FedHKD(least_share=share).upload(m, Data(x, y, mask, {"noise": randn(C, D)}), {})
    for name in ("features", "soft", "counts"):
        assert up[name].present.int().tolist() == told


def upload(counts: Tensor, told: Tensor) -> dict[str, Any]:
    m = len(counts)
    return {
        "features": Ragged(randn(m, C, D, seed=3), told),
        "soft": Ragged(randn(m, C, C, seed=4).softmax(2), told),
        "counts": Ragged(counts, told),
        "shared": {"w": randn(m, 2)},
        "rows": counts.sum(1),
        "ids": torch.arange(m),
    }


def test_the_server_averages_by_rows_over_those_who_told_and_keeps_the_rest() -> None:
    counts = torch.tensor([[5, 3, 0, 2], [1, 4, 0, 5], [6, 2, 2, 0]])
    told = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0]]).bool()  # nobody told of 1, nor of 2
    up, old = upload(counts, told), knowledge()
    after = FedHKD().aggregate(old | {"shared": {"w": randn(2)}}, up, TASK)
    for name in ("features", "soft"):
        got, v = after[name], up[name].values.numpy()
        assert_close(got.values[0].numpy(), (5 * v[0, 0] + 6 * v[2, 0]) / 11, **TIGHT)
        assert_close(got.values[3].numpy(), (2 * v[0, 3] + 5 * v[1, 3]) / 7, **TIGHT)
        assert torch.equal(got.values[1:3], old[name].values[1:3])
        assert got.present.tolist() == [True, False, True, True]  # 2 was known, 1 never
    assert_close(after["shared"]["w"], (up["shared"]["w"] * counts.sum(1)[:, None]).sum(0) / 30, **TIGHT)
