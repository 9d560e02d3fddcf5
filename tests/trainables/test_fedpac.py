"""FedPAC: rounds by hand, with prototypes, moments and mixtures of heads."""

import copy

import pytest
import torch
from support.by_hand import mean_accuracy
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import TIGHT
from torch import nn, optim
from torch.testing import assert_close

from fedtune.nn.simplex import least_on_simplex


@pytest.mark.parametrize("weighting", ["rows", "clients"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_three_rounds_by_hand(executor: str, weighting: str) -> None:
    """With B = n each batch is all rows, in whatever order."""
    lam, lr, holders = 0.7, 0.2, [[0, 1, 1], [1, 2, 2], [0, 1, 3]]
    config = {"lam": lam, "weighting": weighting, "lr": lr, "momentum": 0.0, "batch": 6, "local_steps": 2}
    sim = simulate("fedpac", DIGITS, random_federation([6, 6, 6], holders), executor=executor, **config)
    nets, protos, seen = [client_net(sim, k) for k in range(3)], torch.zeros(4, 12).double(), torch.zeros(4).bool()
    mixtures = None
    for t in (1, 2, 3):
        h, variance, sums, counts = [], [], [], []
        for k, net in enumerate(nets):
            if mixtures:
                net.head.load_state_dict(mixtures[k])
            x, y = own_rows(sim, k)
            member = nn.functional.one_hot(y, 4).double()
            with torch.no_grad():
                z = net.body(x)
            one = torch.stack([torch.outer(member[i], z[i]).flatten() for i in range(6)])
            h.append(one.mean(0))
            variance.append(one.var(0, correction=0).sum() / 6)
            for part, steps in ((net.head, 2), (net.body, 2)):
                optimizer = optim.SGD(part.parameters(), lr=lr)
                for _ in range(steps):
                    optimizer.zero_grad()
                    z = net.body(x)
                    loss = nn.functional.cross_entropy(net.head(z), y)
                    if part is net.body and t > 1:
                        loss = loss + lam * (((z - protos[y]) ** 2).mean(1) * seen[y]).mean()
                    loss.backward()
                    optimizer.step()
            with torch.no_grad():
                z = net.body(x)
            sums.append(member.T @ z)
            counts.append(member.sum(0))
        total, n = torch.stack(sums), torch.stack(counts)
        means = total / n.clamp(min=1)[..., None]
        weight = n if weighting == "rows" else (n > 0).double()
        protos = torch.where(
            (n.sum(0) > 0)[:, None], (weight[..., None] * means).sum(0) / weight.sum(0).clamp(min=1)[:, None], protos
        )
        seen = seen | (n.sum(0) > 0)
        heads = [copy.deepcopy(net.head.state_dict()) for net in nets]
        mixtures = []
        for k in range(3):
            apart = torch.stack([h[k] - one for one in h])
            a = least_on_simplex(torch.diag(torch.stack(variance)) + apart @ apart.T)
            mixtures.append({n: sum(a[j] * heads[j][n] for j in range(3)) for n in heads[0]})
        bodies = [copy.deepcopy(net.body.state_dict()) for net in nets]
        for net in nets:
            net.body.load_state_dict({n: sum(body[n] for body in bodies) / 3 for n in bodies[0]})
        row = play(sim, 1)[0]
        for name, body in nets[0].body.state_dict().items():
            assert_close(sim.state.server["shared"][f"body.{name}"], body, **TIGHT)
        assert_close(sim.state.server["protos"].values, protos, **TIGHT)
        for k in range(3):
            for name, mixed in mixtures[k].items():
                assert_close(sim.state.server["heads"][f"head.{name}"][k], mixed, rtol=0, atol=1e-9)
        for k, net in enumerate(nets):
            net.head.load_state_dict(mixtures[k])
        assert abs(row["test_acc"] - mean_accuracy(sim, "test", lambda k, x: nets[k](x))) < 1e-12
    assert sim.state.server["place"].tolist() == [0, 1, 2]


def test_whoever_never_took_part_gets_the_mean_of_the_heads() -> None:
    sim = simulate("fedpac", DIGITS.override(participation=0.5), random_federation([6] * 4))
    play(sim, 1)
    place, heads = sim.state.server["place"].tolist(), sim.state.server["heads"]
    came = [k for k in range(4) if place[k] == k]
    assert len(came) == 2 and [p for k, p in enumerate(place) if k not in came] == [4, 4]
    own = sim.state.groups[0].tensors
    for n, t in heads.items():
        assert_close(t[4], own[n][came].mean(0), **TIGHT)
