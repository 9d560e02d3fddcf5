"""FedFomo: candidates, weights and mixtures by hand."""

import pytest
import torch
from support.by_hand import assert_own, sgd_step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, record_uploads, simulate
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from fedtune.experiment.algorithm import Task
from fedtune.trainables.fedfomo import FedFomo


@pytest.mark.parametrize(("held", "rest"), [(0.5, [0, 2, 4]), (0.2, [0, 1, 2, 3, 5]), (0.3, [0, 1, 3, 4])])
def test_every_so_many_th_row_is_held_out(held: float, rest: list[int]) -> None:
    assert FedFomo(held_out=held).trains(torch.arange(6)).nonzero()[:, 0].tolist() == rest


def test_candidates_are_others_that_sent_a_model_the_trusted_ones_first_or_any() -> None:
    task = Task(classes=4, features=3, clients=6, batch=4, seed=0, t=3)
    trust = torch.zeros(6, 6)
    trust[0, [2, 4, 5]] = torch.tensor([1.0, 3.0, 2.0])
    server = {"sent": torch.tensor([True, False, True, True, True, True]), "trust": trust}
    who = FedFomo(candidates=3, explore=0.0).candidates_of(server, torch.arange(6), task)
    assert who[0].tolist() == [4, 5, 2] and who.shape == (6, 3)
    for k, row in enumerate(who.tolist()):
        assert len({*row}) == 3 and k not in row and 1 not in row
    assert FedFomo(candidates=20).candidates_of(server, torch.arange(6), task).shape == (6, 4)
    fresh = [
        FedFomo(candidates=1, explore=1.0).candidates_of(server, torch.zeros(1).long(), task._replace(t=t))
        for t in range(90)
    ]
    counts = torch.bincount(torch.cat(fresh).flatten(), minlength=6).tolist()
    assert counts[0] == counts[1] == 0 and min(counts[2:]) > 8  # each of four about 22 times
    nobody = server | {"sent": torch.zeros(6, dtype=torch.bool)}
    assert not FedFomo().broadcast(nobody | {"models": {}}, torch.arange(6), task)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str) -> None:
    """Of 8 rows every fourth is held out; with B = 6 each batch is all others, in whatever order."""
    lr, config = 0.3, {"candidates": 2, "explore": 0.0, "held_out": 0.25, "momentum": 0.0, "batch": 6}
    sim = simulate("fedfomo", DIGITS, random_federation([8] * 3), executor=executor, lr=lr, local_steps=3, **config)
    ups, nets, trust = (record_uploads(sim), [client_net(sim, k) for k in range(3)], torch.zeros(3, 3).double())
    mixed = 0
    for t in (1, 2, 3):
        models = [{n: p.detach().clone() for n, p in net.named_parameters()} for net in nets]
        for k, net in enumerate(nets):
            x, y = own_rows(sim, k)
            judge = torch.tensor([3, 7])
            rest = torch.tensor([0, 1, 2, 4, 5, 6])

            def loss(w: dict, net: nn.Module = net, x: torch.Tensor = x[judge], y: torch.Tensor = y[judge]) -> float:
                return float(nn.functional.cross_entropy(functional_call(net, w, (x,)), y))

            if t > 1:
                worth = {}
                for j in (j for j in range(3) if j != k):
                    far = sum(((models[j][n] - models[k][n]) ** 2).sum() for n in models[k]).sqrt()
                    worth[j] = (loss(models[k]) - loss(models[j])) / (float(far) + 1e-5)
                    trust[k, j] += worth[j]
                total = sum(max(v, 0.0) for v in worth.values())
                if total:
                    mixed += 1
                    net.load_state_dict(
                        {n: sum(max(v, 0.0) / total * models[j][n] for j, v in worth.items()) for n in models[k]}
                    )
            for _ in range(3):
                sgd_step(nn.functional.cross_entropy(net(x[rest]), y[rest]), net, lr)
        row = play(sim, 1)[0]
        worths = {n: t for n, t in sim.state.groups[0].tensors.items() if n.startswith("worth.")}
        assert_own(sim, [net.state_dict() | {n: t[k] for n, t in worths.items()} for k, net in enumerate(nets)])
        assert_close(sim.state.server["trust"], trust, rtol=0, atol=1e-10)
        numbers_of_a_model = sum(p.numel() for p in nets[0].parameters())
        assert row["down_floats"] == (3 * 2 * numbers_of_a_model if t > 1 else 0)
        assert row["up_floats"] == 3 * numbers_of_a_model + (6 if t > 1 else 0)
    assert 0 < mixed and ("v" in ups[-1])
