"""FedFA: its two steps with torch.optim, the anchors' start, moves and mean by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.by_hand import assert_loss, batches, first_client, movable, step
from support.helpers import DIGITS, client_net, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, randn
from torch import Tensor
from torch.testing import assert_close

from fedtune.engine import engine
from fedtune.experiment.algorithm import Batch, Task
from fedtune.nn import architectures
from fedtune.trainables.fedfa import FedFA

C, D = 5, 12
TASK = Task(classes=C, features=D, clients=3, batch=4, seed=0)
HELD = [[0, 1], [1, 2, 2, 2], [0, 2, 3]]  # nobody has class 4


def pull(z: Tensor, y: Tensor, anchors: Tensor) -> Tensor:
    """The term of λ, class by class."""
    return sum(((z[y == c] - anchors[c]) ** 2).sum(1).mean() for c in y.unique().tolist()) / len(anchors)


def by_hand(
    sim: Any, t: int, k: int, net: architectures.Net, anchors: Tensor, swapped: bool = False
) -> tuple[Tensor, Tensor]:
    """Train client k's net in place with torch.optim; its features as they were met, and their labels."""
    alg, work = sim.setup.algorithm, sim.setup.scenario
    sgd = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay)
    adam = torch.optim.Adam(net.head.parameters(), lr=alg.head_lr)
    met, labels = [], []

    def first(x: Tensor, y: Tensor) -> None:
        sgd.zero_grad()
        z = net.body(x)
        (F.cross_entropy(net.head(z), y) + alg.lam * pull(z, y, anchors)).backward()
        sgd.step()
        met.append(z.detach()), labels.append(y)

    def second() -> None:
        step(adam, F.cross_entropy(net.head(anchors), torch.arange(len(anchors))))

    for x, y in batches(sim, t, k):
        if swapped:
            second()
        first(x, y)
        if not swapped:
            second()
    return torch.cat(met), torch.cat(labels)


@pytest.mark.parametrize("config", [{}, {"local_epochs": 2, "weight_decay": 0.1}, {"local_steps": 1}])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str, config: dict) -> None:
    data = random_federation([6, 9, 12], HELD, total=C)
    config = {"lam": 0.7, "m": 0.3, "head_lr": 0.02, "lr": 0.05, "batch": 3} | config
    sim = simulate("fedfa", DIGITS.override(participation=0.6), data, executor=executor, **config)
    seen, n = record_uploads(sim), data.train.counts
    for t in (1, 2):
        ids, old = engine.participants(sim.setup, t).tolist(), sim.state.server["anchors"]
        nets = {k: client_net(sim, k).train() for k in ids}
        twins = {k: client_net(sim, k).train() for k in ids}
        play(sim, 1)
        voted = []
        for i, k in enumerate(ids):
            z, y = by_hand(sim, t, k, nets[k], old)
            up = seen[-1]
            assert_close_numbers({name: v[i] for name, v in up["shared"].items()}, dict(nets[k].state_dict()))
            by_hand(sim, t, k, twins[k], old, swapped=True)
            assert (twins[k].head.weight - nets[k].head.weight).abs().max() > 1e-6  # the order tells
            vote = old.clone()
            for c in y.unique().tolist():
                vote[c] = 0.3 * old[c] + 0.7 * z[y == c].mean(0)
            assert_close(up["anchors"][i], vote, **TIGHT)
            unmet = [c for c in range(C) if c not in y]
            assert 4 in unmet and torch.equal(up["anchors"][i][unmet], old[unmet])
            voted.append(n[k] * vote)
        assert len(ids) == 2 and n[ids[0]] != n[ids[1]]
        assert_close(sim.state.server["anchors"], sum(voted) / sum(int(n[k]) for k in ids), **TIGHT)
        for name, v in sim.state.server["shared"].items():
            whole = sum(n[k] * nets[k].state_dict()[name] for k in ids) / sum(int(n[k]) for k in ids)
            assert_close(v, whole, **TIGHT)


def test_both_losses_by_hand() -> None:
    m, x, y = first_client(simulate("fedfa", DIGITS, random_federation([9], total=C)))
    m, y, a = movable(m), y.clamp(max=3), randn(C, D, seed=3)
    z, classes, count = m.body(x), *y.unique(return_counts=True)
    assert len(classes) < C and count.min() < count.max()  # one is absent, and means over rows would be another number
    loss, tally = FedFA(lam=3.0).loss(m, Batch(x, y, {}), {"anchors": a})
    assert_loss(loss, F.cross_entropy(m.head(z), y) + 3 * pull(z, y, a), m)
    assert tally["counts"].tolist() == y.bincount(minlength=C).tolist()
    for c in classes.tolist():
        assert_close(tally["sums"][c], z[y == c].sum(0), **TIGHT)
    for rows in (slice(2), slice(3, 9)):  # of the head alone, on all anchors, whatever the batch
        got = FedFA().calibrate(m, Batch(x[rows], y[rows], {}), {"anchors": a})
        assert_loss(got, F.cross_entropy(m.head(a), torch.arange(C)), m)


@pytest.mark.parametrize(("classes", "features"), [(4, 12), (6, 6)])
def test_anchors_start_as_different_rows_of_the_identity(classes: int, features: int) -> None:
    a, again, other = (
        FedFA().init(TASK._replace(classes=classes, features=features, seed=s))["anchors"] for s in (0, 0, 1)
    )
    assert a.shape == (classes, features) and set(a.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(a @ a.T, torch.eye(classes))
    assert torch.equal(a, again) and not torch.equal(a, other)
    assert not torch.equal(a, torch.eye(features)[:classes])  # picked at random


def test_with_more_classes_than_features_they_start_as_random_unit_vectors() -> None:
    a, other = (FedFA().init(TASK._replace(classes=7, features=3, seed=s))["anchors"] for s in (0, 1))
    assert_close(a.norm(dim=1), torch.ones(7, dtype=torch.float64), **TIGHT)
    cosines = (a @ a.T).masked_select(~torch.eye(7, dtype=torch.bool))
    assert cosines.max() < 0.999 and cosines.min() < 0 < cosines.max() and not torch.equal(a, other)


def test_the_run_starts_from_them_and_both_ways_are_paid_for() -> None:
    sim = simulate("fedfa", DIGITS.override(participation=0.6), random_federation([6, 9, 12], HELD, total=C))
    want = FedFA().init(TASK)["anchors"].double()
    assert torch.equal(sim.state.server["anchors"], want)
    weights = sum(v.numel() for v in sim.state.server["shared"].values())
    for row in play(sim, 2):
        assert row["up_floats"] == row["down_floats"] == 2 * (weights + C * D)
        assert row["up_ints"] == 2 and row["down_ints"] == 0
    assert not torch.equal(sim.state.server["anchors"][:3], want[:3])
    assert_close(sim.state.server["anchors"][4], want[4], **TIGHT)  # nobody has it
