"""FedPFT: one Gaussian a class in closed form; mixtures go up once; the head is fitted to draws; bodies stand still."""

import pytest
import torch
from support.by_hand import step
from support.helpers import DIGITS, EARLY, client_net, own_rows, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_same_numbers, copied, numbers
from torch import nn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine.engine import participants
from fedtune.nn.mixtures import unpack

HELD = [[0, 1], [1, 2], [0, 1]]  # nobody holds class 3
SMALL = {"pseudo": 12, "head_epochs": 2, "head_batch": 8, "variance_floor": 1e-6}
D = 12


@pytest.mark.parametrize("name", ["fedpft", "gfpl"])
def test_one_component_is_each_classs_gaussian(name: str) -> None:
    """Of the model as it was trained: GFPL's retraining afterwards leaves the body alone."""
    config = SMALL if name == "fedpft" else EARLY["gfpl"] | {"variance_floor": 1e-6}
    sim = simulate(name, DIGITS, random_federation([24, 17, 9], HELD), **config | {"components": 1})
    seen = record_uploads(sim)
    row = play(sim, 1 if name == "fedpft" else 2)[-1]
    local = unpack(seen[0]["mixtures"].values)
    for k, own in enumerate(HELD):
        x, y = own_rows(sim, k)
        z = client_net(sim, k).body(x).detach()
        assert seen[0]["counts"].present[k].nonzero()[:, 0].tolist() == own
        for c in own:
            f = z[y == c]
            lowest = max(1e-6, 1e-6 * f.var(0, correction=0).mean().item())
            assert_close(local.weights[k, c, 0].item(), 1.0, **TIGHT)
            assert_close(local.means[k, c, 0], f.mean(0), **TIGHT)
            assert_close(local.variances[k, c, 0], f.var(0, correction=0).clamp(min=lowest), **TIGHT)
    assert row["up_floats"] == 6 * (1 + 2 * D) and row["up_ints"] == 6
    assert name == "gfpl" or row["down_floats"] == 3 * 4 * (D + 1)


@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_of_the_head_by_hand(executor: str) -> None:
    """Two Gaussians of unequal rows make one mixture; the second round goes on from the first one's head."""
    work = {"executor": executor, "components": 1, "head_optimizer": "sgd", "head_lr": 0.3}
    sim = simulate("fedpft", DIGITS, random_federation([30, 14], [[0, 1], [1, 0]]), **SMALL, **work)
    layer, gaussians = nn.Linear(D, 4).double(), []
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    for k in range(2):
        x, y = own_rows(sim, k)
        z = client_net(sim, k).body(x).detach()
        moments = [(f.mean(0), f.var(0, correction=0)) for f in (z[y == c] for c in (0, 1))]
        gaussians.append([(m, v.clamp(min=max(1e-6, 1e-6 * v.mean().item()))) for m, v in moments])
    for t in (1, 2):
        play(sim, 1)
        stream = randomness.stream(0, "pseudo", t)
        u = torch.rand(4, 12, generator=stream, dtype=torch.float64)
        normal = torch.randn(4, 12, D, generator=stream, dtype=torch.float64)
        rows = []
        for c in (0, 1):  # each client holds the classes half and half: 15 rows against 7
            for i in range(12):
                mean, variance = gaussians[int(u[c, i] * 22 >= 15)][c]
                rows.append(mean + variance.sqrt() * normal[c, i])
        x, y = torch.stack(rows), torch.tensor([0] * 12 + [1] * 12)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
        for _ in range(2):
            for batch in torch.randperm(24, generator=stream).split(8):
                step(optimizer, nn.functional.cross_entropy(layer(x[batch]), y[batch]))
        for name, p in layer.named_parameters():
            assert_close(sim.state.server["head"][name], p.detach(), rtol=0, atol=1e-10)
            assert_close(sim.state.groups[0].tensors[f"head.{name}"][0], p.detach(), rtol=0, atol=1e-10)


def test_mixtures_go_up_once_whoever_takes_part_and_bodies_stand_still() -> None:
    sim = simulate("fedpft", DIGITS.override(participation=0.5), random_federation([9, 8, 7, 6]), **SMALL)
    seen, before = record_uploads(sim), copied(sim.state.groups[0].tensors)
    rows, sent = play(sim, 6), set()
    for up, row in zip(seen, rows, strict=True):
        now = set(up["ids"].tolist())
        assert set(up["ids"][up["counts"].present.any(1)].tolist()) == now - sent
        assert (row["up_floats"] == 0) == (not now - sent) and row["train_loss"] is None
        sent |= now
    assert sent == {0, 1, 2, 3} and len(seen) == 6
    after = sim.state.groups[0].tensors
    bodies = [n for n in before if n.startswith("body")]
    assert_same_numbers({n: after[n] for n in bodies}, {n: before[n] for n in bodies})


@pytest.mark.parametrize("groups", [None, [[0, 1], [2, 3]], [[0], [1, 2, 3]]], ids=["one", "two", "one alone"])
def test_who_takes_part_has_the_rounds_head_and_who_does_not_its_last(groups: list | None) -> None:
    """A head is received and never trained at a client: in the state it is a client's own all the same."""
    data = random_federation([9, 8, 7, 6])
    sim = simulate("fedpft", DIGITS.override(participation=0.5), data, groups=groups, **SMALL)
    heads: dict[int, torch.Tensor] = {}
    for t in range(1, 8):
        play(sim, 1)
        chosen = participants(sim.setup, t).tolist()
        heads |= dict.fromkeys(chosen, sim.state.server["head"]["bias"].clone())
        for k, want in heads.items():
            assert torch.equal(numbers(sim.state)[f"client {k}/head.bias"], want), (t, k)
