"""FedGen: the client's loss and the generator's training by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.by_hand import cross_entropy, step
from support.generators import as_net, at_work, inputs, loss_by_hand, module, two_clients
from support.helpers import DIGITS, EARLY, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, randn
from torch.testing import assert_close

from fedtune.core import randomness
from fedtune.engine import engine
from fedtune.experiment.algorithm import Model
from fedtune.trainables.fedavg import FedAvg
from fedtune.trainables.fedgen import FedGen

SMALL = EARLY["fedgen"]


@pytest.mark.parametrize("t", [0, 1, 100])
def test_the_weights_decay_by_the_round_and_round_zero_has_none(t: int) -> None:
    alg, m, batch, down, net = at_work("fedgen", gen_weight=3.0, kl_weight=2.0, gen_decay=0.98, kl_decay=0.93)
    law = down["labels"]
    part = [
        loss_by_hand(net, down["generator"], batch.x, batch.y, batch.eps, law, *w).item()
        for w in ((0, 0), (1, 0), (0, 1))
    ]
    a, b = (3 * 0.98**t, 2 * 0.93**t) if t else (0, 0)
    want = part[0] + a * (part[1] - part[0]) + b * (part[2] - part[0])
    assert_close(alg.loss_at(t, m, batch, down if t else {}).item(), want, **TIGHT)
    assert part[0] == pytest.approx(cross_entropy(net(batch.x).detach().numpy(), batch.y), abs=1e-12)


def test_generated_rows_move_the_head_alone_and_the_divergences_target_moves_nothing() -> None:
    for weights in ({"gen_weight": 3.0, "kl_weight": 0.0}, {"gen_weight": 0.0, "kl_weight": 2.0}):
        alg, m, batch, down, net = at_work("fedgen", **weights)
        batch = batch._replace(eps={"latent": randn(4, 32)} | batch.eps)
        leaves = {n: t.clone().requires_grad_() for n, t in m.tensors.items()}
        mine = Model(m.net, leaves)
        extra = alg.loss_at(1, mine, batch, down) - FedAvg().loss(mine, batch, {})
        found = torch.autograd.grad(extra, list(leaves.values()), materialize_grads=True)
        grads = dict(zip(leaves, found, strict=True))
        whole = [
            loss_by_hand(net, down["generator"], batch.x, batch.y, batch.eps, down["labels"], a, b)
            for a, b in ((weights["gen_weight"] * 0.98, weights["kl_weight"] * 0.98), (0, 0))
        ]
        want = torch.autograd.grad(whole[0] - whole[1], list(net.parameters()), materialize_grads=True)
        for (n, _), g in zip(net.named_parameters(), want, strict=True):
            assert_close(grads[n], g, **TIGHT)
        assert (grads["body.1.weight"] == 0).all() == (weights["kl_weight"] == 0)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"weighing": "mean", "eta": 0.3},
        {"noise_law": "uniform", "label_law": "uniform", "gen_weight_decay": 0.01},
        {"label_law": "present", "gen_optimizer": "sgd", "gen_lr": 0.01},
    ],
    ids=["text", "mean", "uniform", "sgd"],
)
def test_two_rounds_of_the_generators_training_by_hand(config: dict) -> None:
    sim = simulate(
        "fedgen", DIGITS, two_clients(), gen_steps=12, gen_hidden=16, gen_batch=8, gen_lr_decay=0.9, **config
    )
    alg, whole, seen = sim.setup.algorithm, module(sim.state.server["nets"]), record_uploads(sim)
    share = np.array([[2, 2, 2, 2], [6, 6, 0, 0]]) / np.array([8, 8, 2, 2])
    law = {"histogram": [8, 8, 2, 2], "present": [1] * 4, "uniform": [1] * 4}[alg.label_law]
    mass, kind = np.cumsum(law), torch.optim.SGD if alg.gen_optimizer == "sgd" else torch.optim.Adam
    moving = [p for p in whole.parameters() if p.requires_grad]
    optimizer = kind(moving, lr=alg.gen_lr, weight_decay=alg.gen_weight_decay)
    for t in range(2):
        play(sim, 1)
        up, stream = seen[t]["shared"], randomness.stream(0, "generator", t + 1)
        draw = torch.rand if alg.noise_law == "uniform" else torch.randn
        noise = draw(12, 8, 32, generator=stream, dtype=torch.float64)
        u = torch.rand(12, 8, generator=stream, dtype=torch.float64)
        y = torch.as_tensor(np.searchsorted(mass, u.numpy() * mass[-1], side="right"))
        optimizer.param_groups[0]["lr"] = alg.gen_lr * 0.9**t
        for s in range(12):
            h, loss = whole(inputs(noise[s], y[s])), torch.zeros((), dtype=torch.float64)
            for k in range(2):
                ce = F.cross_entropy(h @ up["head.weight"][k].T + up["head.bias"][k], y[s], reduction="none")
                p = torch.as_tensor(share[k][y[s]])
                loss = loss + ((p * ce).mean() if alg.weighing == "labels" else p.mean() * ce.mean())
            near, far = torch.zeros(8, 8).double(), torch.zeros(8, 8).double()
            for i in range(8):
                for j in range(8):
                    far[i, j] = (noise[s, i] - noise[s, j]).square().mean()
            near = torch.stack([torch.stack([(h[i] - h[j]).abs().mean() for j in range(8)]) for i in range(8)])
            loss = loss + alg.eta * torch.exp(-(near * far).sum() / 64)
            step(optimizer, loss)
        assert_close_numbers(sim.state.server["nets"], as_net(whole))


@pytest.mark.parametrize(
    ("law", "want"), [("histogram", [5, 0, 7, 1]), ("present", [1, 0, 1, 1]), ("uniform", [1, 1, 1, 1])]
)
def test_the_distributions_of_labels(law: str, want: list) -> None:
    counts = torch.tensor([[2, 0, 7, 0], [3, 0, 0, 1]])
    assert FedGen(label_law=law).labels({"counts": counts, "memory": {"first": randn(1)}}).tolist() == want


def test_counts_are_the_latest_that_each_client_told() -> None:
    data = random_federation([8, 6, 7, 5], [[0, 1], [1, 2], [2], [3]])
    sim = simulate("fedgen", DIGITS.override(participation=0.5), data, **SMALL)
    held, told = np.array([[4, 4, 0, 0], [0, 3, 3, 0], [0, 0, 7, 0], [0, 0, 0, 5]]), np.zeros((4, 4), int)
    for t in range(1, 5):
        play(sim, 1)
        here = engine.participants(sim.setup, t).tolist()
        told[here] = held[here]
        assert sim.state.server["counts"].tolist() == told.tolist()
