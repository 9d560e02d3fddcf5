"""FedDyn: a first step is FedAvg's, and a server that goes on by it; rounds by hand; where it rests the loss does."""

import pytest
import torch
from support.by_hand import batches, mean_accuracy
from support.helpers import BATCHNORM, DIGITS, client_net, play, random_federation, simulate
from support.numbers import TIGHT, assert_close_numbers, copied
from support.rest import slope_at_rest
from torch import nn
from torch.testing import assert_close

from fedtune.engine.engine import participants


@pytest.mark.parametrize("executor", ["stack", "loop"])
@pytest.mark.parametrize(("participation", "share"), [(1.0, 1.0), (0.5, 0.5)])
def test_a_first_step_is_fedavgs_scaled_by_the_share_that_took_part(
    participation: float, share: float, executor: str
) -> None:
    """At its start a client is neither bent nor held, whatever α: its first step is that of α -> 0."""
    scenario, data = DIGITS.override(participation=participation), random_federation([6, 6, 6, 6])
    config = {"executor": executor, "local_steps": 1, "lr": 0.2}
    dyn = simulate("feddyn", scenario, data, alpha_dyn=7.0, **config)
    sgd = simulate("fedadam", scenario, data, rule="sgd", beta1=0.0, server_lr=1 + share, **config)
    play(dyn, 1), play(sgd, 1)
    assert_close_numbers(dyn.state.server["shared"], sgd.state.server["shared"])


def test_rounds_by_hand() -> None:
    """Clients of 1, 3 and 2 steps; one of four sits out."""
    eta, alpha, rows = 0.2, 0.8, [4, 11, 6, 8]
    sim = simulate(
        "feddyn", DIGITS.override(participation=0.75), random_federation(rows), lr=eta, momentum=0.0, alpha_dyn=alpha
    )
    net = client_net(sim, 0)
    w = copied(sim.state.server["shared"])
    h = {n: torch.zeros_like(t) for n, t in w.items()}  # the paper's: -α times ours
    own = [dict(h) for _ in rows]
    for t in (1, 2, 3):
        play(sim, 1)
        kept, chosen = sim.state.groups[0].kept["gradient"], participants(sim.setup, t).tolist()
        assert len(chosen) == 3
        ends = []
        for k in chosen:
            net.load_state_dict(copied(w))
            for x, y in batches(sim, t, k):
                loss = nn.functional.cross_entropy(net(x), y)
                grads = torch.autograd.grad(loss, list(net.parameters()))
                with torch.no_grad():
                    for (n, p), g in zip(net.named_parameters(), grads, strict=True):
                        p -= eta * (g - own[k][n] + alpha * (p - w[n]))
            ends.append(copied(net.state_dict()))
            own[k] = {n: g - alpha * (ends[-1][n] - w[n]) for n, g in own[k].items()}
        h = {n: t - alpha / 4 * sum(e[n] - w[n] for e in ends) for n, t in h.items()}
        w = {n: sum(e[n] for e in ends) / 3 - h[n] / alpha for n in w}
        assert_close_numbers(sim.state.server["shared"], w)
        assert_close_numbers(sim.state.server["averaged"], {n: sum(e[n] for e in ends) / 3 for n in w})
        for k in range(4):
            for n, g in kept.items():
                assert_close(g[k], own[k][n], **TIGHT)


def test_clients_gradients_and_the_servers_moves_are_one() -> None:
    """With everybody taking part the mean of g_k is -α h, round after round."""
    sim = simulate("feddyn", BATCHNORM, random_federation([5, 9, 7]), alpha_dyn=0.3, lr=0.05)
    for _ in range(3):
        play(sim, 1)
        for name, moves in sim.state.server["moves"].items():
            assert_close(sim.state.groups[0].kept["gradient"][name].mean(0), -0.3 * moves, **TIGHT)
    assert not [n for n in sim.state.server["moves"] if "running" in n or "num_batches" in n]


@pytest.mark.long
def test_it_rests_where_the_mean_loss_does_and_fedavg_does_not() -> None:
    dynamic, plain = slope_at_rest("feddyn", alpha_dyn=0.5), slope_at_rest("fedavg")
    assert dynamic < 1e-5 < 1e-2 < plain, (dynamic, plain)


@pytest.mark.parametrize("scored", ["server", "averaged"])
def test_the_servers_model_and_the_clients_mean_are_logged_and_one_is_scored(scored: str) -> None:
    sim = simulate("feddyn", DIGITS, random_federation([24, 17, 9]), scored=scored, lr=0.3, local_epochs=3)
    row, net = play(sim, 3)[-1], client_net(sim, 0)
    for kind, model in (("server", "shared"), ("averaged", "averaged")):
        net.load_state_dict(copied(sim.state.server[model]))
        assert abs(row[f"val_acc_{kind}"] - mean_accuracy(sim, "val", lambda _, x: net(x))) < 1e-12
    assert row["val_acc"] == row[f"val_acc_{scored}"]
