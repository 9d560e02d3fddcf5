"""FedNova: rounds by hand."""

import pytest
import torch
from support.by_hand import batches
from support.helpers import DIGITS, client_net, play, random_federation, record_uploads, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from torch import nn
from torch.testing import assert_close


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rounds_by_hand(momentum: float) -> None:
    """Clients of 1, 3 and 2 steps; one of four sits out."""
    eta, beta, rows = 0.2, 0.5, [4, 11, 6, 8]
    work = {"lr": eta, "momentum": momentum, "server_momentum": beta}
    sim = simulate("fednova", DIGITS.override(participation=0.75), random_federation(rows), **work)
    net, seen = client_net(sim, 0), record_uploads(sim)
    w = copied(sim.state.server["shared"])
    moves = {n: torch.zeros_like(t) for n, t in w.items()}
    for t in (1, 2, 3):
        play(sim, 1)
        chosen = seen[t - 1]["ids"].tolist()
        assert len(chosen) == 3
        total, steps, delta = sum(rows[k] for k in chosen), 0.0, {n: torch.zeros_like(v) for n, v in w.items()}
        for at, k in enumerate(chosen):
            net.load_state_dict(copied(w))
            speed = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
            inertia = weight = 0.0  # of a constant gradient of one
            for x, y in batches(sim, t, k):
                inertia = momentum * inertia + 1
                weight += inertia
                loss = nn.functional.cross_entropy(net(x), y)
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
