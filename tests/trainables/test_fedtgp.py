"""FedTGP: margin, server training and start by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import first_client, step
from support.helpers import DIGITS, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers
from torch import Tensor, nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine import engine
from fedtune.experiment.algorithm import Batch, Ragged, Task
from fedtune.trainables.fedtgp import FedTGP, prototypes

C, D = 4, 12
TASK = Task(classes=C, features=D, clients=3, batch=3, seed=0)
HELD = [[0, 1], [1, 2], [0, 2, 1]]  # nobody has class 3
SMALL = {"server_epochs": 3, "server_lr": 0.05}


@pytest.mark.parametrize(("tau", "want"), [(100.0, 96.2), (50.0, 50.0), (3.5, 3.5), (0.0, 96.2), (1000.0, 96.2)])
def test_the_margin_is_the_widest_gap_between_neighbours_and_bounded(tau: float, want: float) -> None:
    q = torch.tensor([[0.0, 0], [3, 0], [3, 4], [3, 100.2]], dtype=torch.float64)  # nearest other: 3, 3, 4, 96.2
    everyone = torch.ones(4, dtype=torch.bool)
    assert_close(FedTGP(tau=tau).gap(q, everyone).item(), want, **TIGHT)


def test_the_margin_is_of_the_classes_that_came_in_and_0_for_a_single_one() -> None:
    q = torch.tensor([[0.0, 0], [3, 0], [3, 4], [9e3, 9e3]], dtype=torch.float64)
    for seen, want in (([1, 1, 1, 0], 4), ([1, 0, 1, 0], 5), ([1, 1, 0, 0], 3), ([0, 1, 0, 0], 0)):
        assert_close(FedTGP().gap(q, torch.tensor(seen).bool()).item(), float(want), **TIGHT)


class Twin(nn.Module):
    """The net by PyTorch's own layers, drawn as the algorithm says it does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(randomness.number(seed, "prototypes"))
            self.e, self.a, self.b = nn.Embedding(C, D), nn.Linear(D, D), nn.Linear(D, D)
        self.double()

    def forward(self) -> Tensor:
        return self.b(F.relu(self.a(self.e(torch.arange(C)))))


def server_loss(p: Tensor, y: list[int], made: Tensor, margin: float) -> Tensor:
    """Row by row, class by class."""
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(p, y, strict=True):
        scores = torch.stack([-((row - made[c]).norm() + margin * (c == label)) for c in range(C)])
        total = total + scores.logsumexp(0) - scores[label]
    return total / len(y)


@pytest.mark.parametrize(("weighting", "tau"), [("clients", 100.0), ("clients", 0.2), ("rows", 100.0)])
def test_two_rounds_by_hand_the_net_is_kept(weighting: str, tau: float) -> None:
    data = random_federation([8, 6, 7], [[0, 0, 1], [1, 2, 2], [0, 2, 1]])
    scenario = DIGITS.override(participation=0.7)
    sim = simulate("fedtgp", scenario, data, weighting=weighting, tau=tau, batch=3, **SMALL)
    twin, seen, bounded = Twin(0), record_uploads(sim), set()
    for t in (1, 2, 3):
        play(sim, 1)
        (values, held), ids = seen[-1]["protos"], engine.participants(sim.setup, t).tolist()
        pairs = [(i, c) for i in range(len(ids)) for c in range(C) if held[i, c]]
        p, y = torch.stack([values[i, c] for i, c in pairs]), [c for _, c in pairs]
        q = {}
        for c in sorted(set(y)):
            weight = [float((own_rows(sim, ids[i])[1] == c).sum()) if weighting == "rows" else 1.0 for i in range(2)]
            q[c] = sum(weight[i] * values[i, c] for i in range(2) if held[i, c])
            q[c] = q[c] / sum(weight[i] for i in range(2) if held[i, c])
        gaps = [min((q[c] - q[d]).norm().item() for d in q if d != c) for c in q]
        bounded.add(max(gaps) > tau)
        stream, optimizer = randomness.stream(0, "prototypes", t), torch.optim.SGD(twin.parameters(), lr=0.05)
        assert len(y) % 3, "a short last batch counts too"
        for _ in range(3):
            for some in torch.randperm(len(y), generator=stream).split(3):
                step(optimizer, server_loss(p[some], [y[i] for i in some.tolist()], twin(), min(max(gaps), tau)))
        got = sim.state.server["protos"]
        assert got.present.all()
        assert_close(got.values, twin().detach(), **TIGHT)
        want = dict(
            zip(("embedding.weight", "in.weight", "in.bias", "out.weight", "out.bias"), twin.parameters(), strict=True)
        )
        assert_close_numbers(sim.state.server["net"], {n: t.detach() for n, t in want.items()})
    assert bounded == {tau < 1}


def test_a_prototype_that_lies_on_its_target_has_a_finite_slope() -> None:
    net = {n: t.double() for n, t in FedTGP().init(TASK)["net"].items()}
    one = torch.tensor(1.0, dtype=torch.float64)
    for p in (prototypes(net), prototypes(net)[:1].expand(C, D)):
        got = FedTGP(**SMALL).trained(net, p, torch.arange(C), one, 3, randomness.stream("anything"))
        assert all(t.isfinite().all() and not torch.equal(t, net[n]) for n, t in got.items())


def test_the_clients_loss_and_the_prediction_are_of_the_trained_prototypes() -> None:
    sim = simulate("fedtgp", DIGITS, random_federation([9, 8], HELD[1:]), lam=7.0, **SMALL)
    play(sim, 2)
    server, (m, x, y) = sim.state.server, first_client(sim)
    made, z = prototypes(server["net"]), m.body(x)
    alg, down = sim.setup.algorithm, {"protos": server["protos"]}
    want = F.cross_entropy(m.head(z), y) + 7 * ((z - made[y]) ** 2).mean()
    assert_close(alg.loss(m, Batch(x, y, {}), down), want, **TIGHT)
    ways = alg.predict(m, x, down)
    assert list(ways) == ["nearest", "head"]
    far = np.array([[np.linalg.norm(row - t) for t in made.numpy()] for row in z.numpy()])
    assert_close(-ways["nearest"].numpy(), far, **TIGHT)  # class 3, which nobody has, as well


def test_before_the_first_exchange_there_is_no_target() -> None:
    sim = simulate("fedtgp", DIGITS, random_federation([9]), lam=7.0)
    m, x, y = first_client(sim)
    down = {"protos": sim.state.server["protos"]}
    assert isinstance(down["protos"], Ragged) and not down["protos"].present.any()
    assert_close(sim.setup.algorithm.loss(m, Batch(x, y, {}), down), F.cross_entropy(m.head(m.body(x)), y), **TIGHT)
