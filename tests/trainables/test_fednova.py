"""FedNova: rounds by hand; where clients pull apart the rows decide."""

from __future__ import annotations

import pytest
import torch
from support.helpers import DIGITS, client_draws, client_net, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from torch import nn
from torch.testing import assert_close


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rounds_by_hand(momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of 1, 3 and 2 steps; one of four sits out."""
    eta, beta, rows = 0.2, 0.5, [4, 11, 6, 8]
    sim = simulate(
        "fednova",
        DIGITS.override(participation=0.75),
        random_federation(rows),
        lr=eta,
        momentum=momentum,
        server_momentum=beta,
    )
    f, net, seen = sim.setup.federation, client_net(sim, 0), record_uploads(sim, monkeypatch)
    w = copied(sim.state.server["shared"])
    moves = {n: torch.zeros_like(t) for n, t in w.items()}
    for t in (1, 2, 3):
        draws = [client_draws(sim, t, k) for k in range(4)]
        play(sim, 1)
        chosen = seen[t - 1]["ids"].tolist()
        assert len(chosen) == 3
        total, steps, delta = sum(rows[k] for k in chosen), 0.0, {n: torch.zeros_like(v) for n, v in w.items()}
        for at, k in enumerate(chosen):
            net.load_state_dict(copied(w))
            speed = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
            inertia = weight = 0.0  # of a constant gradient of one
            for batch in draws[k].rows[0]:
                inertia = momentum * inertia + 1
                weight += inertia
                loss = nn.functional.cross_entropy(net(f.x[batch]), f.y[batch])
                grads = torch.autograd.grad(loss, list(net.parameters()))
                with torch.no_grad():
                    for (n, p), g in zip(net.named_parameters(), grads, strict=True):
                        speed[n] = momentum * speed[n] + g
                        p -= eta * speed[n]
            assert_close(seen[t - 1]["weight"][at].item(), weight, **TIGHT)
            steps += rows[k] / total * weight
            for n, p in net.named_parameters():
                delta[n] += rows[k] / total * (p.detach() - w[n]) / weight
        moves = {n: beta * v + steps * delta[n] for n, v in moves.items()}
        w = {n: v + moves[n] for n, v in w.items()}
        assert_close_numbers(sim.state.server["shared"], w)


def test_a_client_of_more_steps_does_not_pull_more() -> None:
    """One and eight batches: FedAvg's mean leans to the second client, FedNova's weights are the rows'.

    Along steps so small that gradients stay as they are, w_k - w = -η a_k g_k: the move is -η Σ p a · Σ p g.
    """
    data, rows = random_federation([4, 32], [[0, 1], [2, 3]]), torch.tensor([4.0, 32.0], dtype=torch.float64)
    sim = simulate("fednova", DIGITS, data, lr=1e-5, momentum=0.0, batch=4)
    start, f = copied(sim.state.server["shared"]), sim.setup.federation
    net, draws = client_net(sim, 0), [client_draws(sim, 1, k).rows[0] for k in range(2)]
    assert [len(d) for d in draws] == [1, 8]
    slopes = []
    for batches in draws:
        losses = torch.stack([nn.functional.cross_entropy(net(f.x[b]), f.y[b]) for b in batches])
        slopes.append(torch.autograd.grad(losses.mean(), list(net.parameters())))
    play(sim, 1)
    share = rows / rows.sum()
    steps = (share * torch.tensor([1.0, 8.0])).sum()
    for (name, _), one, two in zip(net.named_parameters(), *slopes, strict=True):
        moved = (sim.state.server["shared"][name] - start[name]) / 1e-5
        assert_close(moved, -steps * (share[0] * one + share[1] * two), rtol=0, atol=1e-3)
        averaged = -(share[0] * one + 8 * share[1] * two)  # FedAvg's move
        assert (moved - averaged).abs().max() > 0.01
