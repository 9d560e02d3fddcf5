"""FedAMP: the weights of both similarities, and rounds, by hand."""

import math

import pytest
import torch
from support.by_hand import assert_own, distance, sgd_step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT, assert_same_numbers, randn
from torch import nn
from torch.testing import assert_close

from fedtune.experiment.experiment import fitting
from fedtune.trainables.fedamp import FedAMP


def test_weights_are_the_papers() -> None:
    models, sent = randn(4, 6), torch.tensor([True, True, True, False])
    alpha, sigma = 0.7, 5.0
    got = FedAMP(cloud_step=alpha, sigma=sigma).weights(models, sent)
    heur = FedAMP(similarity="cosine", sigma=sigma, self_weight=0.3).weights(models, sent)
    for k in range(3):
        others = [j for j in range(3) if j != k]
        for j in others:
            apart = float(((models[k] - models[j]) ** 2).sum())
            assert abs(got[k, j] - alpha * math.exp(-apart / sigma) / sigma) < 1e-12
        assert abs(got[k, k] - (1 - got[k, others].sum())) < 1e-12 and got[k, k] > 0
        cosines = {j: float(nn.functional.cosine_similarity(models[k], models[j], dim=0)) for j in others}
        total = sum(math.exp(sigma * c) for c in cosines.values())
        for j in others:
            assert abs(heur[k, j] - 0.7 * math.exp(sigma * cosines[j]) / total) < 1e-12
        assert abs(heur[k, k] - 0.3) < 1e-12
    for found in (got, heur):
        assert torch.equal(found[3], torch.tensor([1, 1, 1, 0]).double() / 3) and (found[:3, 3] == 0).all()
        assert_close(found.sum(1), torch.ones(4, dtype=torch.float64), **TIGHT)


def test_large_steps_leave_the_own_model_no_weight_and_a_lonely_one_all() -> None:
    models = torch.zeros(3, 2, dtype=torch.float64)
    got = FedAMP(cloud_step=100.0, sigma=0.1).weights(models, torch.tensor([True] * 3))
    assert_close(got, (1 - torch.eye(3, dtype=torch.float64)) / 2, **TIGHT)
    for similarity in ("distance", "cosine"):
        alone = FedAMP(similarity=similarity, sigma=1000.0).weights(models, torch.tensor([True, False, False]))
        assert torch.equal(alone, torch.tensor([[1.0, 0, 0]] * 3, dtype=torch.float64))


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str) -> None:
    """With B = n each batch is all rows, in whatever order."""
    lam, alpha, sigma, lr = 0.8, 2.0, 4.0, 0.2
    config = {"lam": lam, "cloud_step": alpha, "sigma": sigma, "lr": lr, "momentum": 0.0, "batch": 6}
    sim = simulate("fedamp", DIGITS, random_federation([6, 6, 6]), executor=executor, local_steps=2, **config)
    nets = [client_net(sim, k) for k in range(3)]
    for t in (1, 2, 3):
        models = [{n: p.detach().clone() for n, p in net.named_parameters()} for net in nets]
        flat = torch.stack([torch.cat([p.flatten() for p in of.values()]) for of in models])
        weights = FedAMP(cloud_step=alpha, sigma=sigma).weights(flat, torch.tensor([True] * 3))
        for k, net in enumerate(nets):
            cloud = {n: sum(weights[k, j] * models[j][n] for j in range(3)) for n in models[0]}
            x, y = own_rows(sim, k)
            for _ in range(2):
                pull = lam / alpha / 2 * distance(net, cloud) if t > 1 else 0
                sgd_step(nn.functional.cross_entropy(net(x), y) + pull, net, lr)
        row = play(sim, 1)[0]
        assert_own(sim, [net.state_dict() for net in nets])
        assert_same_numbers(sim.state.server["models"], sim.state.groups[0].tensors)
        numbers_of_a_model = sum(p.numel() for p in nets[0].parameters())
        assert row["down_floats"] == (3 * numbers_of_a_model if t > 1 else 0)
        assert row["up_floats"] == 3 * numbers_of_a_model


def test_planning_makes_no_models_of_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    init = FedAMP.init
    monkeypatch.setattr(FedAMP, "init", lambda alg, task: seen.append(task.clients) or init(alg, task))
    assert "fedamp" in fitting(DIGITS.override(clients=40, ways=4, shots=8))
    assert seen and max(seen) <= 2
