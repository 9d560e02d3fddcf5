"""FedHKD: the loss, what is told with how much noise, and the means, by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import SEEN, assert_loss, first_client, movable, softmax, three_of_four
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.experiment.algorithm import Batch, Data, Ragged, Task, draw
from fedtune.trainables.fedhkd import FedHKD

C, D = 4, 12
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)


def knowledge() -> dict[str, Ragged]:
    return {"features": three_of_four(randn(C, D, seed=9)), "soft": three_of_four(randn(C, C, seed=8).softmax(1))}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize(("soft", "sharp"), [("mse", False), ("kl", False), ("kl", True)])
def test_the_loss_by_hand(soft: str, sharp: bool, temperature: float) -> None:
    """Agreement moves the head alone; ln 0 of sharp predictions does not come up."""
    m, x, y = first_client(simulate("fedhkd", DIGITS, random_federation([9])))
    m, down, known = movable(m), knowledge(), SEEN[y]
    if sharp:
        down["soft"] = Ragged(torch.eye(C, dtype=torch.float64), SEEN)
    features, target, z = down["features"].values, down["soft"].values[SEEN], m.body(x)
    logits = m.head(features[SEEN]) / temperature
    apart = {"mse": ((logits.softmax(1) - target) ** 2).sum() / C}
    apart["kl"] = F.kl_div(logits.log_softmax(1), target, reduction="sum")
    pull = ((z[known] - features[y[known]]) ** 2).sum() / D
    assert not known.all()
    got = FedHKD(lam=3.0, gamma=2.0, temperature=temperature, soft=soft).loss(m, Batch(x, y, {}), down)
    assert_loss(got, F.cross_entropy(m.head(z), y) + 3 * apart[soft] / C + 2 * pull / 9, m)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_what_is_told_is_the_mean_plus_sigma_times_the_clients_own_noise(executor: str) -> None:
    data, found = random_federation([8, 6, 9]), {}
    for sigma in (0.0, 2.0):
        sim = simulate("fedhkd", DIGITS, data, executor=executor, noise=sigma, least_share=0.0)
        seen = record_uploads(sim)
        play(sim, 1)
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
