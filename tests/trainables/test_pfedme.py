"""pFedMe: rounds by hand."""

import pytest
from support.by_hand import assert_own, common_model, distance, sgd_step
from support.helpers import DIGITS, client_net, own_rows, play, random_federation, simulate
from support.numbers import assert_close_numbers
from torch import nn


@pytest.mark.parametrize("averaging", ["rows", "clients"])
@pytest.mark.parametrize("executor", ["stack", "loop"])
def test_two_rounds_by_hand(executor: str, averaging: str) -> None:
    """With B = n each batch is all rows, in whatever order."""
    lam, lr, outer, beta, sizes = 0.7, 0.1, 0.3, 1.5, [6, 3]
    config = {"lam": lam, "common_lr": outer, "server_step": beta, "inner_steps": 3, "averaging": averaging}
    work = {"lr": lr, "momentum": 0.0, "batch": 6, "local_steps": 2, "executor": executor}
    sim = simulate("pfedme", DIGITS, random_federation(sizes), **config, **work)
    thetas = [client_net(sim, k) for k in range(2)]
    common = {n: t.detach().clone() for n, t in thetas[0].named_parameters()}
    for _ in range(2):
        ends = []
        for k, net in enumerate(thetas):
            net.load_state_dict(common)
            w, (x, y) = {n: t.clone() for n, t in common.items()}, own_rows(sim, k)
            if len(x) < 6:
                x, y = x.repeat(2, 1, 1, 1), y.repeat(2)
            for _ in range(2):
                for _ in range(3):
                    sgd_step(nn.functional.cross_entropy(net(x), y) + lam / 2 * distance(net, w), net, lr)
                for n, p in net.named_parameters():
                    w[n] = w[n] - outer * lam * (w[n] - p.detach())
            ends.append(w)
        share = [2 / 3, 1 / 3] if averaging == "rows" else [0.5, 0.5]
        mean = {n: share[0] * ends[0][n] + share[1] * ends[1][n] for n in common}
        common = {n: (1 - beta) * t + beta * mean[n] for n, t in common.items()}
        play(sim, 1)
        assert_close_numbers(common_model(sim), common)
        assert_own(sim, [net.state_dict() for net in thetas])
